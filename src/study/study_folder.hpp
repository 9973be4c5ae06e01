// The folder of a study: what its runs are, and who works on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/io/file_lock.hpp"
#include "src/io/study_log.hpp"
#include "src/study/study.hpp"
#include "src/train/run_check.hpp"

namespace fp8lab {

/// True when DIRECTORY/NAME holds a run that is done.
bool is_complete(const std::filesystem::path& directory, const std::string& name);

/// The arm with the checkpoint of its shared run as its start.
RunConfig start_from_shared(const PlannedArm& arm, const std::filesystem::path& directory);

/// Throws Error naming the runs in `directory` that are not those of the plan, and what differs:
/// configuration, contents of recipes and data, initial weights.
void check_runs_are_those_of(const StudyPlan& plan, const std::filesystem::path& directory,
                             RunCheck& check);

/// What study.h5 says: the plan, and of each run in `directory` how far it is.
StudyTable describe_study(const StudyConfig& study, const StudyPlan& plan,
                          const std::filesystem::path& directory);

/// What is left to do of a study, or of the part of it that the options name.
struct UnfinishedRuns {
  std::vector<const RunConfig*> shared;  ///< that are asked for, or that `arms` start from
  std::vector<const PlannedArm*> arms;
  std::int64_t complete = 0;  ///< runs that are asked for and done, each of which it says
};

/// Throws Error naming the run that could not be trained, and why.
UnfinishedRuns find_unfinished_runs(const StudyPlan& plan, const StudyOptions& options,
                                    RunCheck& check);

/// Writes study.h5 from what is in the folder. One process at a time, so that the file of the last
/// one is the newest. Throws Error as check_runs_are_those_of.
void rewrite_study_file(const StudyConfig& study, const StudyPlan& plan,
                        const StudyOptions& options, RunCheck& check);

/// Lock on one arm, or on a shared run.
std::filesystem::path lock_of_run(const std::filesystem::path& directory, const std::string& name);

/// Who holds the lock, for a message.
std::string owner_of(const std::filesystem::path& lock_path);

/// Taken at once: exclusively by a process that runs the whole study, shared by those that run
/// parts of it beside each other. Throws Error naming the process in the way.
FileLock lock_study(const StudyPlan& plan, const std::filesystem::path& directory,
                    FileLock::Mode mode);

/// Takes a lock that another process will release, and says that it waits. Empty when `stop` was
/// raised or `limit_seconds` (0: none) are over before.
std::optional<FileLock> wait_for_lock(const std::filesystem::path& lock_path,
                                      const std::string& what, const StudyOptions& options,
                                      double limit_seconds = 0);

}  // namespace fp8lab
