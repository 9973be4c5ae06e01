// Child processes of a study, and commands of the system. Each arm trains in its own process, so
// that its failure does not affect others.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/io/files/file_lock.hpp"
#include "src/study/step_slot.hpp"

namespace fp8lab {

/// Exit status of a `train` that completed although its loss diverged.
inline constexpr int kDivergedStatus = 5;

/// Begins a line of `train` that names a remedy for a run that broke or diverged.
inline constexpr const char* kWayOn = "try: ";

struct ChildTask {
  std::string name;
  std::vector<std::string> arguments;  ///< arguments of this program, without its name
  std::filesystem::path log;           ///< receives standard output and error
  /// Also held by the child, so that a child that briefly outlives this process stays covered.
  std::shared_ptr<FileLock> lock;
  std::filesystem::path lock_path;  ///< lock to take when the task starts, if `lock` is null
  std::vector<int> inherited = {};  ///< further descriptors that stay open in the child
  std::shared_ptr<StepSlot> step = nullptr;  ///< where the child reports its step; inherited too
};

struct RunningChild {
  const ChildTask* task;
  double seconds;  ///< time since its start
};

struct ChildResult {
  std::string name;
  int exit_code = 0;  ///< 128 + signal if killed
  int signal = 0;     ///< signal that killed it, else 0
  double seconds = 0;
  std::string last_line;  ///< last line of its output; empty if there was none
  std::filesystem::path log;

  /// Returns true if the run completed, even if its loss diverged: divergence
  /// may be an arm's purpose.
  bool is_complete() const { return exit_code == 0 || exit_code == kDivergedStatus; }
};

/// Runs the tasks with at most `jobs` at once. Calls `finished` when a task ends, and `watch` with
/// the running tasks many times per second. Once `stop` is set, no further task starts, and running
/// tasks get SIGTERM. They also get it if this process dies for any reason; a signal from the
/// terminal reaches only this process. Throws RuntimeFailure if a process cannot be started, Error
/// if another process holds its lock; in both cases no child is left.
std::vector<ChildResult> run_children(
    const std::vector<ChildTask>& tasks, int jobs, const std::atomic<bool>& stop,
    const std::function<void(const ChildResult&)>& finished,
    const std::function<void(const std::vector<RunningChild>&)>& watch = {});

/// Runs a command of the system, found in PATH, to completion and returns its output. Throws Error
/// if it cannot be started, RuntimeFailure with its standard error if it fails.
std::string output_of(std::vector<std::string> words);

}  // namespace fp8lab
