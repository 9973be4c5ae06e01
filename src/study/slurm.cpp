#include "src/study/slurm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"
#include "src/study/process.hpp"
#include "src/study/study_folder.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestArray = 1000;  // MaxArraySize is 1001 by default

/// Options that the script or the command line of sbatch sets itself.
constexpr std::array kOwnSettings = {"array",  "chdir",    "dependency", "error",
                                     "output", "parsable", "wrap",       "kill-on-invalid-dep"};

std::string key_of(const std::string& setting) { return setting.substr(0, setting.find('=')); }

bool has_control_character(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::iscntrl(c) != 0; });
}

/// Escapes a folder for a quoted file name of sbatch, in which % begins a replacement.
std::string in_pattern(const std::string& folder) {
  std::string text;
  for (const char c : folder) text += c == '%' ? std::string("%%") : std::string(1, c);
  return text;
}

/// Refuses folders with newlines or quotes: a line of a script ends at any newline, a
/// quoted name at any quote.
void check_folder(const fs::path& folder) {
  const std::string text = folder.string();
  if (!has_control_character(text) && text.find_first_of("\"\\") == std::string::npos) return;
  throw InputError({.where = "ablate --launcher slurm",
                    .key = "--out",
                    .found = quoted_word(text),
                    .accepted = "a folder whose path has no control character, no '\"' and no "
                                "'\\', which a script of sbatch cannot hold"});
}

/// One submission: the names of runs that can begin together.
struct Array {
  std::string title;
  std::vector<std::string> runs;
  std::string after;  ///< task that must succeed first; empty: none
};

std::string script_of(const Array& array, const SlurmJob& job, const fs::path& folder) {
  std::string text = "#!/bin/bash\n";
  const auto set = [&](const std::string& setting) { text += "#SBATCH --" + setting + "\n"; };
  // sbatch would choose between duplicate options: the user's option replaces the default.
  const auto set_unless_given = [&](const std::string& setting) {
    const auto same = [key = key_of(setting)](const auto& given) { return key_of(given) == key; };
    if (std::none_of(job.settings.begin(), job.settings.end(), same)) set(setting);
  };
  set_unless_given("job-name=" + array.title);
  set(fmt::format("array=0-{}{}", array.runs.size() - 1,
                  job.at_once > 0 ? fmt::format("%{}", job.at_once) : ""));
  set(fmt::format("output=\"{}/%A_%a.out\"", in_pattern(folder.string())));
  set_unless_given("open-mode=append");
  set_unless_given(fmt::format("signal=B:TERM@{}", job.stop_before));
  for (const std::string& setting : job.settings) set(setting);
  text += "runs=(\n";
  for (const std::string& run : array.runs) text += fmt::format("  {}\n", shell_quoted(run));
  text += ")\nexec";
  for (const std::string& word : job.command) text += " " + shell_quoted(word);
  return text + " --threads \"$SLURM_CPUS_ON_NODE\" --run \"${runs[SLURM_ARRAY_TASK_ID]}\"\n";
}

/// The submitted tasks of a study.
class Tasks {
 public:
  explicit Tasks(fs::path file) : file_(std::move(file)) {
    if (!is_present(file_)) return;
    text_ = read_file(file_);
    std::istringstream lines(text_);
    std::string task, run;
    while (lines >> task >> run) last_[run] = task;
  }

  /// Returns the last task of a run; empty if the run was never submitted.
  std::string of(const std::string& run) const {
    const auto found = last_.find(run);
    return found == last_.end() ? "" : found->second;
  }

  void add(const std::string& job, const std::vector<std::string>& runs) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      last_[runs[i]] = fmt::format("{}_{}", job, i);
      text_ += fmt::format("{} {}\n", last_[runs[i]], runs[i]);
    }
    write_file_atomically(file_, text_);
  }

 private:
  fs::path file_;
  std::string text_;
  std::map<std::string, std::string> last_;
};

/// Returns the tasks of this user that are still in Slurm's queue.
std::set<std::string> tasks_in_queue() {
  std::istringstream lines(output_of({"squeue", "--me", "--noheader", "--array", "--format=%i"}));
  std::set<std::string> tasks;
  std::string task;
  while (lines >> task) tasks.insert(task);
  return tasks;
}

/// Returns the last line about the run in its task's output, written by the
/// task, the program or Slurm.
std::string end_of(const std::string& run, const fs::path& file) {
  if (!is_present(file)) return "it never began";
  std::istringstream lines(read_file(file));
  std::string line, last;
  while (std::getline(lines, line)) {
    const bool about_run = line.starts_with(run + ": ") && !line.ends_with(": starts");
    if (about_run || line.starts_with("fp8lab: ") || line.starts_with("slurmstepd: ")) last = line;
  }
  if (last.empty()) return "killed before it could say why";
  return last.starts_with(run + ": ") ? last.substr(run.size() + 2) : last;
}

class Submission {
 public:
  Submission(const StudyOptions& options, const SlurmJob& job)
      : options_(options),
        job_(job),
        folder_(fs::absolute(options.directory / "slurm")),
        tasks_(folder_ / "tasks"),
        queue_(tasks_in_queue()) {}

  /// Returns true if the run is still in Slurm's queue; otherwise reports how its last task ended.
  bool is_queued(const std::string& run) const {
    const std::string task = tasks_.of(run);
    if (task.empty()) return false;
    if (queue_.count(task) != 0) return true;
    options_.say(fmt::format("{}: its task {} ended: {}", run, task,
                             end_of(run, folder_ / (task + ".out"))));
    return false;
  }

  std::string task_of(const std::string& run) const { return tasks_.of(run); }

  void submit(const std::string& title, const std::vector<std::string>& runs,
              const std::string& after) {
    for (std::size_t begin = 0; begin < runs.size(); begin += kLargestArray) {
      const auto first = runs.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto count = std::min(kLargestArray, runs.size() - begin);
      submit(Array{title, {first, first + static_cast<std::ptrdiff_t>(count)}, after});
    }
  }

 private:
  void submit(const Array& array) {
    const fs::path script = folder_ / "submitted.sh";
    write_file_atomically(script, script_of(array, job_, folder_));
    std::vector<std::string> words = {"sbatch", "--parsable"};
    if (!array.after.empty()) {
      words.push_back("--dependency=afterok:" + array.after);
      words.emplace_back("--kill-on-invalid-dep=yes");
    }
    words.push_back(script.string());
    const std::string answer = output_of(words);  // JOB, or JOB;CLUSTER
    const std::string id = answer.substr(0, answer.find_first_not_of("0123456789"));
    if (id.empty()) throw RuntimeFailure(fmt::format("sbatch: no job id in '{}'", answer));
    tasks_.add(id, array.runs);
    fs::rename(script, folder_ / (id + ".sh"));
    options_.say(fmt::format("job {}: {}{}", id, fmt::join(array.runs, ", "),
                             array.after.empty() ? "" : ", once " + array.after + " is complete"));
  }

  const StudyOptions& options_;
  const SlurmJob& job_;
  fs::path folder_;
  Tasks tasks_;
  std::set<std::string> queue_;
};

}  // namespace

namespace {

void check_setting(const std::string& setting) {
  const std::string key = key_of(setting);
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
  });
  if (!plain || key.front() == '-' || has_control_character(setting)) {
    throw InputError(
        {.where = "ablate",
         .key = "--slurm",
         .found = setting,
         .accepted =
             "a long option of sbatch without its hyphens, such as partition=gpu or exclusive"});
  }
  if (std::find(kOwnSettings.begin(), kOwnSettings.end(), key) != kOwnSettings.end()) {
    throw InputError({.where = "ablate",
                      .key = "--slurm",
                      .found = setting,
                      .reason = fmt::format(": '{}' is set by ablate itself", key),
                      .accepted = "other long options of sbatch (sbatch --help)"});
  }
}

}  // namespace

std::string slurm_settings_of_ablate() {
  return fmt::format(
      "{}, and unless given job-name, open-mode and signal (--stop-before); --threads is "
      "cpus-per-task, --jobs the limit of the array",
      fmt::join(kOwnSettings, ", "));
}

void check_slurm_settings(const std::vector<std::string>& settings) {
  std::map<std::string, std::string> given;  // by key
  for (const std::string& setting : settings) {
    check_setting(setting);
    const auto [other, is_new] = given.emplace(key_of(setting), setting);
    if (is_new) continue;
    throw InputError(
        {.where = "ablate",
         .key = "--slurm",
         .found = setting,
         .reason = fmt::format(": '{}' is given before as {}", other->first, other->second),
         .accepted = "once"});
  }
}

SubmittedStudy submit_study(const StudyConfig& study, const StudyPlan& plan,
                            const StudyOptions& options, const SlurmJob& job) {
  check_folder(fs::absolute(options.directory));
  make_directories(options.directory / "slurm");
  const FileLock lock = lock_study(plan, options.directory, FileLock::Mode::shared);
  const std::optional<FileLock> alone =
      wait_for_lock(options.directory / ".slurm", "the queue", options);
  SubmittedStudy result;
  if (!alone) return result;  // stopped
  RunCheck check(options.make_backend);
  check_runs_are_those_of(plan, options.directory, check);
  const UnfinishedRuns unfinished = find_unfinished_runs(plan, options, check);
  result.complete = unfinished.complete;
  // Also if nothing is left to do: the last task may have been killed before it wrote the file.
  rewrite_study_file(study, plan, options, check);
  if (unfinished.arms.empty()) return result;
  Submission submission(options, job);
  std::vector<std::string> shared;
  for (const RunConfig* config : unfinished.shared) {
    if (!submission.is_queued(config->name)) shared.push_back(config->name);
  }
  submission.submit(study.name + "-shared", shared, "");
  std::map<std::string, std::vector<std::string>> arms;  // by the shared run that they wait for
  for (const PlannedArm* arm : unfinished.arms) {
    if (submission.is_queued(arm->name)) {
      ++result.queued;
      continue;
    }
    const bool waits = !arm->shared_run.empty() && !is_complete(options.directory, arm->shared_run);
    arms[waits ? arm->shared_run : ""].push_back(arm->name);
    ++result.submitted;
  }
  for (const auto& [awaited, names] : arms) {
    submission.submit(study.name, names, awaited.empty() ? "" : submission.task_of(awaited));
  }
  return result;
}

}  // namespace fp8lab
