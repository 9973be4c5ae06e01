#include "src/study/process.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "emulation/api/error.hpp"

namespace fp8lab {
namespace {

using Clock = std::chrono::steady_clock;

struct Running {
  std::string name;
  Clock::time_point began;
};

pid_t start(const ChildTask& task) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), task.arguments.begin(), task.arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, task.log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int status =
      posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    throw RuntimeFailure(fmt::format("cannot start {}: {}", program, std::strerror(status)));
  }
  return child;
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::vector<ChildResult> run_children(const std::vector<ChildTask>& tasks, int jobs,
                                      const std::atomic<bool>& stop,
                                      const std::function<void(const ChildResult&)>& finished) {
  std::vector<ChildResult> results;
  std::map<pid_t, Running> running;
  std::size_t next = 0;
  bool told = false;
  while (!running.empty() || (next < tasks.size() && !stop.load())) {
    while (!stop.load() && next < tasks.size() && running.size() < static_cast<std::size_t>(jobs)) {
      running[start(tasks[next])] = {tasks[next].name, Clock::now()};
      ++next;
    }
    if (stop.load() && !told) {
      for (const auto& [child, task] : running) kill(child, SIGTERM);
      told = true;
    }
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    const auto found = ended > 0 ? running.find(ended) : running.end();
    if (found == running.end()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    const double seconds =
        std::chrono::duration<double>(Clock::now() - found->second.began).count();
    results.push_back({found->second.name, exit_code(status), seconds});
    running.erase(found);
    finished(results.back());
  }
  return results;
}

}  // namespace fp8lab
