// A study as arrays of Slurm jobs, one task a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/study/study.hpp"

namespace fp8lab {

/// How the tasks are started. Slurm is used by its commands `sbatch` and `squeue`, nothing is
/// linked.
struct SlurmJob {
  /// Program and arguments of a task; "--threads N --run NAME" follow.
  std::vector<std::string> command;
  /// Long options of sbatch, "partition=gpu" or "exclusive", in the head of the script.
  std::vector<std::string> settings;
  int at_once = 0;  ///< tasks of an array at once; 0: as many as Slurm starts
  /// Seconds before its time limit at which a task gets SIGTERM, writes a checkpoint and ends,
  /// unless `settings` have a signal of their own.
  int stop_before = 60;
};

struct SubmittedStudy {
  std::int64_t complete = 0, submitted = 0, queued = 0;  ///< arms
};

/// Throws Error for what is no option of sbatch, for one that submit_study itself gives, and for
/// one that is given twice: "ablate: --slurm SETTING: ...".
void check_slurm_settings(const std::vector<std::string>& settings);

/// Submits the unfinished runs that are not in the queue, and rewrites study.h5; does not wait. An
/// array holds the shared runs, and for each of them an array, afterok on its task, the arms that
/// start from it. Arms that can begin at once are an array of their own.
///
/// What has been submitted is kept in DIRECTORY/slurm: JOB.sh, JOB_TASK.out, and the list `tasks`
/// of which run each task is. Of a run that was submitted before and is neither complete nor in the
/// queue, it says what its task wrote last. Throws Error as run_study and for a directory whose
/// path a script of sbatch cannot hold, and RuntimeFailure with the
/// message of a command of Slurm that fails; what was submitted before stays so.
SubmittedStudy submit_study(const StudyConfig& study, const StudyPlan& plan,
                            const StudyOptions& options, const SlurmJob& job);

}  // namespace fp8lab
