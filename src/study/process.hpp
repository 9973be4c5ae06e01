// Child processes of a study: each arm trains in its own, so that a failure stays its own.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fp8lab {

struct ChildTask {
  std::string name;
  std::vector<std::string> arguments;  ///< of this program, without its name
  std::filesystem::path log;           ///< receives standard output and error
};

struct ChildResult {
  std::string name;
  int exit_code = 0;  ///< 128 + signal when killed
  double seconds = 0;
};

/// Runs the tasks with at most `jobs` at once and calls `finished` as each ends. Once `stop` is
/// raised no further task starts and running ones get SIGTERM. Throws RuntimeFailure when a process
/// cannot be started.
std::vector<ChildResult> run_children(const std::vector<ChildTask>& tasks, int jobs,
                                      const std::atomic<bool>& stop,
                                      const std::function<void(const ChildResult&)>& finished);

}  // namespace fp8lab
