// Runs a study as arrays of Slurm jobs, with one task per run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/study/study.hpp"

namespace fp8lab {

/// How to start the tasks. Slurm is called through its commands `sbatch` and
/// `squeue`; no library is linked.
struct SlurmJob {
  /// Program and arguments of a task; "--threads N --run NAME" are appended.
  std::vector<std::string> command;
  /// Long options of sbatch for the head of the script, "partition=gpu" or "exclusive".
  std::vector<std::string> settings;
  int at_once = 0;  ///< limit of concurrent tasks per array; 0: no limit
  /// Time in seconds before its time limit at which a task gets SIGTERM, writes a checkpoint and
  /// ends. Ignored if `settings` contain a signal option.
  int stop_before = 60;
};

struct SubmittedStudy {
  std::int64_t complete = 0, submitted = 0, queued = 0;  ///< numbers of arms
};

/// Returns which options of sbatch submit_study sets, for help.
std::string slurm_settings_of_ablate();

/// Throws Error, "ablate: --slurm SETTING: ...", for settings that are not options of sbatch, that
/// submit_study sets itself, or that are given twice.
void check_slurm_settings(const std::vector<std::string>& settings);

/// Submits the unfinished runs that are not in the queue, and rewrites study.h5; does not wait. One
/// array contains the shared runs. The arms of each shared run form an array that depends (afterok)
/// on its task. Arms that can begin at once form an array of their own.
///
/// DIRECTORY/slurm keeps the records of submissions: JOB.sh, JOB_TASK.out, and the list `tasks`,
/// which maps tasks to runs. For a run that was submitted before and is neither complete nor in the
/// queue, prints the last line of its task's output. Throws Error under the conditions of run_study
/// and for a directory whose path cannot appear in a script of sbatch, RuntimeFailure with the
/// message of a command of Slurm that fails; earlier submissions remain.
SubmittedStudy submit_study(const StudyConfig& study, const StudyPlan& plan,
                            const StudyOptions& options, const SlurmJob& job);

}  // namespace fp8lab
