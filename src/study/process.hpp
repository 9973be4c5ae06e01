// Child processes of a study: each arm trains in its own, so that a failure stays its own; and
// commands of the system.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/io/file_lock.hpp"
#include "src/study/step_slot.hpp"

namespace fp8lab {

/// The status of a `train` that is complete, but whose loss diverged.
inline constexpr int kDivergedStatus = 5;

struct ChildTask {
  std::string name;
  std::vector<std::string> arguments;  ///< of this program, without its name
  std::filesystem::path log;           ///< receives standard output and error
  /// Held by the child too, so that it covers a child that outlives this process for a moment.
  std::shared_ptr<FileLock> lock;
  std::filesystem::path lock_path;           ///< locked when the task starts, where `lock` is null
  std::vector<int> inherited = {};           ///< further descriptors that stay open in the child
  std::shared_ptr<StepSlot> step = nullptr;  ///< where the child tells its step; inherited too
};

struct RunningChild {
  const ChildTask* task;
  double seconds;  ///< since its start
};

struct ChildResult {
  std::string name;
  int exit_code = 0;  ///< 128 + signal when killed
  int signal = 0;     ///< that killed it, else 0
  double seconds = 0;
  std::string last_line;  ///< of what it wrote; empty when it wrote nothing
  std::filesystem::path log;

  /// Its run is complete, whatever became of the loss: an arm may be there to diverge.
  bool is_complete() const { return exit_code == 0 || exit_code == kDivergedStatus; }
};

/// Runs the tasks with at most `jobs` at once and calls `finished` as each ends, and `watch` with
/// those at work many times a second. Once `stop` is
/// raised no further task starts and running ones get SIGTERM. They also get it when this process
/// dies, however it dies; a signal of the terminal reaches this process alone. Throws
/// RuntimeFailure when a process cannot be started, Error when another process holds its lock; no
/// child is left then.
std::vector<ChildResult> run_children(
    const std::vector<ChildTask>& tasks, int jobs, const std::atomic<bool>& stop,
    const std::function<void(const ChildResult&)>& finished,
    const std::function<void(const std::vector<RunningChild>&)>& watch = {});

/// What a command of the system prints, found in PATH and run to its end. Throws Error when it
/// cannot be started, RuntimeFailure with its words on standard error when it fails.
std::string output_of(std::vector<std::string> words);

}  // namespace fp8lab
