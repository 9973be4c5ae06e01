// The folder of a study: what its runs are, and who works on it.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

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

/// Lock on one arm, or on a shared run.
std::filesystem::path lock_of_run(const std::filesystem::path& directory, const std::string& name);

/// Who holds the lock, for a message.
std::string owner_of(const std::filesystem::path& lock_path);

/// Taken at once: the whole study by a process that runs all of it; its part of the study, beside
/// others of its kind, by one that runs one arm. Throws Error naming the process in the way.
FileLock lock_study(const StudyPlan& plan, const StudyOptions& options);

/// Takes a lock that another process will release, and says that it waits. Empty when `stop` was
/// raised or `limit_seconds` (0: none) are over before.
std::optional<FileLock> wait_for_lock(const std::filesystem::path& lock_path,
                                      const std::string& what, const StudyOptions& options,
                                      double limit_seconds = 0);

}  // namespace fp8lab
