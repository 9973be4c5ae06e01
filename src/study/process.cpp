#include "src/study/process.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/command_output.hpp"
#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {
namespace {

using Clock = std::chrono::steady_clock;

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file.valid()) {
    throw RuntimeFailure(fmt::format("{}: cannot open: {}", path.string(), error_text(errno)));
  }
  return file;
}

/// Everything a new process needs, prepared before the fork: after it only system calls are safe.
struct Launch {
  std::vector<char*> words;
  std::vector<int> inherited;
  int input, log, report;
  pid_t parent;
};

[[noreturn]] void become_child(const Launch& launch) {
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  // The parent may have died before this setting took effect.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != launch.parent) ::_exit(1);
  ::setpgid(0, 0);
  for (const int descriptor : launch.inherited) ::fcntl(descriptor, F_SETFD, 0);
  if (::dup2(launch.input, STDIN_FILENO) >= 0 && ::dup2(launch.log, STDOUT_FILENO) >= 0 &&
      ::dup2(launch.log, STDERR_FILENO) >= 0) {
    ::execv("/proc/self/exe", launch.words.data());
  }
  const int error = errno;
  if (::write(launch.report, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

pid_t start(const ChildTask& task) {
  std::vector<std::string> words = {
      std::filesystem::read_symlink("/proc/self/exe").filename().string()};
  words.insert(words.end(), task.arguments.begin(), task.arguments.end());
  const FileDescriptor input = open_file("/dev/null", O_RDONLY);
  const FileDescriptor log = open_file(task.log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW);
  Pipe pipe;
  Launch launch{{}, task.inherited, input.get(), log.get(), pipe.input.get(), ::getpid()};
  if (task.lock) launch.inherited.push_back(task.lock->descriptor());
  if (task.step) launch.inherited.push_back(task.step->descriptor());
  for (std::string& word : words) launch.words.push_back(word.data());
  launch.words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) become_child(launch);
  int error = child < 0 ? errno : 0;
  pipe.input.close();
  // A successful exec closes this end of the pipe.
  const bool failed = child < 0 || ::read(pipe.output.get(), &error, sizeof error) > 0;
  if (!failed) return child;
  if (child > 0) ::waitpid(child, nullptr, 0);
  throw RuntimeFailure(fmt::format("cannot start {}: {}", task.name, error_text(error)));
}

/// Returns the last non-empty line of a file after position `begin`.
std::string last_line(const std::filesystem::path& path, std::uintmax_t begin) {
  constexpr std::uintmax_t kTail = 8192;
  constexpr std::size_t kLongest = 500;
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(path, ignored);
  if (ignored || size <= begin) return {};
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(std::max(begin, size > kTail ? size - kTail : 0)));
  std::string line, last;
  while (std::getline(file, line)) {
    std::replace_if(
        line.begin(), line.end(),
        [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
    if (line.find_first_not_of(' ') != std::string::npos) last = line;
  }
  return last.size() > kLongest ? "... " + last.substr(last.size() - kLongest) : last;
}

/// The running child processes. The destructor ends all that remain.
class Children {
 public:
  ~Children() {
    terminate();
    for (const auto& [child, task] : running_) ::waitpid(child, nullptr, 0);
  }

  std::size_t count() const { return running_.size(); }

  void add(ChildTask task) {
    if (!task.lock && !task.lock_path.empty()) {
      std::optional<FileLock> lock = FileLock::try_acquire(task.lock_path);
      if (!lock) {
        throw InputError(
            {.noun = task.name,
             .reason = fmt::format("is being trained by {}", FileLock::owner(task.lock_path))});
      }
      task.lock = std::make_shared<FileLock>(std::move(*lock));
    }
    std::error_code ignored;
    const std::uintmax_t size = std::filesystem::file_size(task.log, ignored);
    const pid_t child = start(task);
    running_.emplace(child, Running{std::move(task), Clock::now(), ignored ? 0 : size});
  }

  void terminate() const {
    for (const auto& [child, task] : running_) ::kill(child, SIGTERM);
  }

  std::vector<RunningChild> running() const {
    std::vector<RunningChild> list;
    for (const auto& [child, running] : running_) {
      list.push_back(
          {&running.task, std::chrono::duration<double>(Clock::now() - running.began).count()});
    }
    return list;
  }

  /// Returns a child that has ended, if there is one.
  std::optional<ChildResult> collect() {
    int status = 0;
    const auto found = running_.find(::waitpid(-1, &status, WNOHANG));
    if (found == running_.end()) return std::nullopt;
    const Running& ended = found->second;
    ChildResult result;
    result.name = ended.task.name;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + result.signal;
    result.seconds = std::chrono::duration<double>(Clock::now() - ended.began).count();
    result.last_line = last_line(ended.task.log, ended.log_begin);
    result.log = ended.task.log;
    running_.erase(found);
    return result;
  }

 private:
  struct Running {
    ChildTask task;
    Clock::time_point began;
    std::uintmax_t log_begin;  ///< size of the log at the start of the child
  };
  std::map<pid_t, Running> running_;
};

}  // namespace

std::string output_of(std::vector<std::string> words) {
  const std::string name = words[0];
  const CommandOutput output = run_command(std::move(words));
  if (output.status == 0) return output.out;
  throw RuntimeFailure(
      fmt::format("{} failed: {}", name, output.error.empty() ? output.out : output.error));
}

std::vector<ChildResult> run_children(
    const std::vector<ChildTask>& tasks, int jobs, const std::atomic<bool>& stop,
    const std::function<void(const ChildResult&)>& finished,
    const std::function<void(const std::vector<RunningChild>&)>& watch) {
  std::vector<ChildResult> results;
  Children children;
  std::size_t next = 0;
  bool told = false;
  while (children.count() > 0 || (next < tasks.size() && !stop.load())) {
    while (!stop.load() && next < tasks.size() &&
           children.count() < static_cast<std::size_t>(jobs)) {
      children.add(tasks[next++]);
    }
    if (stop.load() && !told) {
      children.terminate();
      told = true;
    }
    std::optional<ChildResult> ended = children.collect();
    if (!ended) {
      if (watch) watch(children.running());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    results.push_back(*ended);
    finished(results.back());
  }
  return results;
}

}  // namespace fp8lab
