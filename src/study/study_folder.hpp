// The folder of a study: its runs, their progress, and the locks of the processes that work on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/io/files/file_lock.hpp"
#include "src/io/hdf5/study_log.hpp"
#include "src/study/study.hpp"
#include "src/train/run_check.hpp"

namespace fp8lab {

/// Returns true if DIRECTORY/NAME contains a completed run.
bool is_complete(const std::filesystem::path& directory, const std::string& name);

/// Returns the arm's configuration with the checkpoint of its shared run as its initial weights.
RunConfig start_from_shared(const PlannedArm& arm, const std::filesystem::path& directory);

/// Throws Error that names the runs in `directory` that differ from the plan, and the difference:
/// configuration, contents of recipes and data, or initial weights.
void check_runs_are_those_of(const StudyPlan& plan, const std::filesystem::path& directory,
                             RunCheck& check);

/// Returns the contents of study.h5: the plan, and the progress of each run in `directory`.
StudyTable describe_study(const StudyConfig& study, const StudyPlan& plan,
                          const std::filesystem::path& directory);

/// The unfinished runs of a study, or of the part of it that the options select.
struct UnfinishedRuns {
  std::vector<const RunConfig*> shared;  ///< requested, or needed as a start by `arms`
  std::vector<const PlannedArm*> arms;
  std::int64_t complete = 0;  ///< number of requested runs that are complete; each is reported
};

/// Throws Error that names a run that cannot be trained, and the reason.
UnfinishedRuns find_unfinished_runs(const StudyPlan& plan, const StudyOptions& options,
                                    RunCheck& check);

/// Writes study.h5 from the contents of the folder. Only one process writes at a time, so the last
/// file written is the newest. Throws Error under the conditions of check_runs_are_those_of.
void rewrite_study_file(const StudyConfig& study, const StudyPlan& plan,
                        const StudyOptions& options, RunCheck& check);

/// Returns the path of the lock on one arm, or on a shared run.
std::filesystem::path lock_of_run(const std::filesystem::path& directory, const std::string& name);

/// Returns the holder of the lock, for a message.
std::string owner_of(const std::filesystem::path& lock_path);

/// Takes the lock of the study without waiting: exclusively for a process that runs the
/// whole study, shared for processes that run parts of it in parallel. Throws Error that
/// names the process that holds it.
FileLock lock_study(const StudyPlan& plan, const std::filesystem::path& directory,
                    FileLock::Mode mode);

/// Waits for a lock that another process will release, and reports the wait. Returns nothing if
/// `stop` is set or after `limit_seconds` (0: no limit).
std::optional<FileLock> wait_for_lock(const std::filesystem::path& lock_path,
                                      const std::string& what, const StudyOptions& options,
                                      double limit_seconds = 0);

}  // namespace fp8lab
