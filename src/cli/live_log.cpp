#include "src/cli/live_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/cli/analysis_package.hpp"
#include "src/io/files/file_descriptor.hpp"

namespace fp8lab::cli {
namespace {

/// Starts `words` with `input` as standard input. `is_silent` discards its standard
/// error. Returns 0 on failure.
pid_t start_process(std::vector<std::string> words, int input, bool is_silent) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input >= 0) posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  if (is_silent) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int failure =
      posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failure == 0 ? child : 0;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

}  // namespace

LiveLog::LiveLog(std::string kind, std::string interpreter, std::filesystem::path out)
    : kind_(std::move(kind)), interpreter_(std::move(interpreter)), out_(std::move(out)) {
  set_python_path();
  const pid_t check =
      start_process({interpreter_, "-m", "fp8lab_analysis.live", "--check"}, -1, true);
  if (check != 0 && wait_for(check) == 0) return;
  throw InputError(
      {.where = "train",
       .key = "--log",
       .found = kind_,
       .reason = fmt::format(": {} does not run with numpy, scipy and h5py; install these (on "
                             "Debian and Ubuntu: python3-numpy python3-scipy python3-h5py), or "
                             "name another interpreter with --python or FP8LAB_PYTHON",
                             interpreter_)});
}

void LiveLog::start(const std::filesystem::path& run_file, double seconds, std::int64_t step) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw RuntimeFailure("train: --log: cannot make a pipe: " + error_text(errno));
  }
  child_ = start_process({interpreter_, "-m", "fp8lab_analysis.live", "--kind=" + kind_,
                          "--out=" + out_.string(), fmt::format("--clock={:.6f}", now - seconds),
                          fmt::format("--after={}", step), "--", run_file.string()},
                         ends[0], false);
  ::close(ends[0]);
  input_ = ends[1];
  if (child_ == 0) throw RuntimeFailure("train: --log: cannot start " + interpreter_);
}

LiveLog::~LiveLog() {
  if (input_ >= 0) ::close(input_);
  if (child_ != 0) wait_for(child_);
}

}  // namespace fp8lab::cli
