// fp8lab ablate: trains all arms of a study and resumes those that are not complete.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/option_assignments.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/run_choice.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/ranks.hpp"
#include "src/cli/study_listing.hpp"
#include "src/config/config.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"
#include "src/study/slurm.hpp"
#include "src/study/study.hpp"
#include "src/train/stop_signal.hpp"

namespace fp8lab::cli {
namespace {

Options ablate_options() {
  Options options("fp8lab ablate --study FILE");
  options.add("study", value<std::string>(), "study file (TOML)");
  options.add("out", value<std::string>(), "study directory (default: runs/NAME)");
  options.add_set("KEY=VALUE for every arm, repeatable");
  add_scale(options);
  options.add("jobs", value<int>(0),
              "number of arms at a time; 0: one for each processor, or as many as Slurm starts");
  options.add("threads", value<int>(0),
              "threads of each arm; 0: processors / jobs, or those of the Slurm task");
  options.add("index", value<std::int64_t>(), "run only this arm (0, 1, ...), for job arrays");
  options.add("run", value<std::string>(), "run only this arm or shared run, by its name");
  options.add(
      "launcher", one_of({"local", "slurm", "mpi"}, "local"),
      "slurm: submit a job array with one task for each run, and return; mpi: this process is a "
      "rank that takes the next free run (mpirun -n N fp8lab ablate --launcher mpi ...)");
  options.add(
      "slurm", value<std::vector<std::string>>(),
      "launcher slurm: a long option of sbatch for every task, without --, such as "
      "partition=gpu, time=4:00:00, gpus=1, mem=32G or exclusive; repeatable. ablate itself "
      "sets " +
          slurm_settings_of_ablate());
  options.add(
      "stop-before", value<int>(60, "60"),
      "launcher slurm: a task gets SIGTERM this many seconds before its time limit, and writes a "
      "checkpoint; must exceed the longest step");
  options.add("list", "print the arms with the hashes of configuration and recipes; run nothing");
  options.add(
      "dry-run",
      "print memory and time of the runs that are missing in --out, from operations timed here "
      "(up to a minute); run nothing; status 2 if a run could not begin here, for want of memory "
      "or its device, although the plan is printed");
  return options;
}

constexpr int kLongestLead = 65535;  // largest value that sbatch accepts

StudyConfig chosen_study(const std::string& file, const Values& values) {
  const std::optional<double> scale = chosen_scale(values, "ablate");
  OptionAssignments assignments(values, "ablate");
  assignments.add_set();
  assignments.explain("scale", "scale", fmt::format("{}", scale.value_or(1.0)));
  return assignments.reading([&] { return load_study_config(file, assignments.all(), scale); });
}

/// Returns the arguments that each Slurm task repeats: the study, its settings and its folder.
std::vector<std::string> command_of_task(const Values& values, const StudyOptions& options) {
  const auto absolute = [](const std::filesystem::path& path) {
    return std::filesystem::absolute(path).string();
  };
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "ablate",
                                    "--study",
                                    absolute(values["study"].as<std::string>()),
                                    "--out",
                                    absolute(options.directory)};
  for (const std::string& text : words_of(values, "set")) {
    words.insert(words.end(), {"--set", text});
  }
  if (values.count("scale") != 0) {
    words.insert(words.end(), {"--scale", fmt::format("{}", values["scale"].as<double>())});
  }
  return words;
}

int submit(const Values& values, const StudyConfig& study, StudyOptions options) {
  SlurmJob job;
  job.at_once = values["jobs"].as<int>();
  if (options.threads > 0) job.settings.push_back(fmt::format("cpus-per-task={}", options.threads));
  for (const std::string& setting : words_of(values, "slurm")) job.settings.push_back(setting);
  check_slurm_settings(job.settings);
  job.stop_before = values["stop-before"].as<int>();
  job.command = command_of_task(values, options);
  // The submitting machine need not have the device: the tasks check its capabilities.
  options.make_backend = [&](const std::string& name) {
    return make_backend(name == "cuda" ? "cpu" : name, options.threads);
  };
  const SubmittedStudy result = submit_study(study, plan_study(study), options, job);
  fmt::print("{} complete, {} submitted, {} in the queue already\n", result.complete,
             result.submitted, result.queued);
  fmt::print("next: {}fp8lab report {}\n",
             result.submitted + result.queued > 0 ? "when the jobs have ended, " : "",
             shell_path(options.directory.string()));
  return stop_requested().load() ? ExitCode::kInterrupted : ExitCode::kSuccess;
}

/// Returns the threads of each rank's arm when ranks share the processors of this machine; at most
/// the number of processors to which the process is bound.
int threads_beside(int ranks) {
  const auto all = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::min(available_processors(), std::max(1, all / ranks));
}

/// Returns the run that --run or --index selects; nothing for all runs.
std::optional<std::string> chosen_run_of(const Values& values, const StudyPlan& plan) {
  if (values.count("run") != 0) return values["run"].as<std::string>();
  if (values.count("index") == 0) return std::nullopt;
  const auto index = values["index"].as<std::int64_t>();
  const auto arms = static_cast<std::int64_t>(plan.arms.size());
  if (index >= 0 && index < arms) return plan.arms[static_cast<std::size_t>(index)].name;
  throw InputError({.key = "--index",
                    .found = fmt::to_string(index),
                    .reason = fmt::format(": the study has arms 0 to {}", arms - 1)});
}

/// Returns the commands that show what a study found, and what stopped its failed runs.
std::string commands_after(const StudyResult& result, const std::filesystem::path& directory) {
  const std::string folder = shell_path(directory.string());
  if (result.failed == 0) return "fp8lab report " + folder;
  if (result.complete == 0) return "fp8lab doctor " + folder;
  return fmt::format("fp8lab report {0} | fp8lab doctor {0}", folder);
}

/// Returns the command that continues a study: the same one.
std::string same_command(const std::vector<std::string>& arguments) {
  std::string command = "fp8lab ablate";
  for (const std::string& argument : arguments) command += " " + shell_word(argument);
  return command;
}

int run_here(const Values& values, const StudyConfig& study, StudyOptions options,
             const std::vector<std::string>& arguments) {
  const StudyPlan plan = plan_study(study);
  options.only = chosen_run_of(values, plan);
  if (values["launcher"].as<std::string>() == "mpi") {
    const StartedRank started = rank_of_this_process();
    options.rank = started.rank;
    options.progress = nullptr;
    if (options.threads == 0) options.threads = threads_beside(started.on_this_machine);
    options.say = [place = started.rank.place, say = options.say](const std::string& line) {
      say(fmt::format("rank {}: {}", place, line));
    };
  }
  options.make_backend = [&](const std::string& name) {
    return make_backend(name, options.threads);
  };
  const StudyResult result = run_study(study, plan, options);
  options.say(fmt::format("{} complete, {} failed, {} interrupted", result.complete, result.failed,
                          result.interrupted));
  if (result.interrupted > 0 || stop_requested().load()) {
    if (!options.rank) options.say("next: " + same_command(arguments));
    return ExitCode::kInterrupted;
  }
  if (!options.rank) options.say("next: " + commands_after(result, options.directory));
  const bool speaks_for_all = !options.rank || options.rank->place == 0;
  return result.failed > 0 && speaks_for_all ? ExitCode::kRuntimeFailure : ExitCode::kSuccess;
}

/// Throws Error for options that have no effect in combination.
void check_combination(const Values& values) {
  const auto launcher = values["launcher"].as<std::string>();
  const bool only_tells = values.count("list") != 0 || values.count("dry-run") != 0;
  if (only_tells) {
    refuse_given(values, values.count("list") != 0 ? "ablate --list" : "ablate --dry-run",
                 {"index", "run", "launcher", "slurm"}, "is for running the arms");
  }
  if (values.count("list") != 0 && values.count("dry-run") == 0) {
    refuse_given(values, "ablate --list", {"out", "jobs", "threads"},
                 "is not read without --dry-run");
  }
  if (launcher != "slurm") refuse_given(values, "ablate", {"slurm"}, "is for --launcher slurm");
  if (launcher != "slurm" && values.count("dry-run") == 0) {
    refuse_given(values, "ablate", {"stop-before"}, "is for --launcher slurm and --dry-run");
  }
  const int stop_before = values["stop-before"].as<int>();
  if (stop_before < 1 || stop_before > kLongestLead) {
    throw InputError({.where = "ablate",
                      .key = "--stop-before",
                      .found = fmt::to_string(stop_before),
                      .accepted = fmt::format("1 to {} seconds", kLongestLead)});
  }
  for (const std::string& setting : words_of(values, "slurm")) {
    if (!setting.starts_with("signal=")) continue;
    refuse_given(values, "ablate", {"stop-before"}, "and --slurm signal=... say the same twice");
  }
  if (launcher != "local") {
    refuse_given(values, "ablate --launcher " + launcher, {"index", "run"},
                 "is for --launcher local");
  }
  if (launcher == "mpi") {
    refuse_given(values, "ablate --launcher mpi", {"jobs"}, "is not for ranks: each runs one arm");
  }
  if (values.count("run") != 0) {
    refuse_given(values, "ablate --run", {"index"}, "names a run as well");
  }
}

}  // namespace

int ablate(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && !arguments.front().starts_with('-')) {  // "ablate study.toml"
    throw InputError({.where = "ablate",
                      .found = quoted_word(arguments.front()),
                      .reason = "comes without an option",
                      .accepted = "--study " + arguments.front()});
  }
  const Values values = parse_arguments("ablate", ablate_options(), arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string file = required(values, "study", "ablate");
  check_combination(values);
  const int threads = threads_of(values, "ablate");
  const int jobs = checked_threads(values["jobs"].as<int>(), "ablate: --jobs");
  checked_threads(std::int64_t{threads} * jobs, "ablate: --jobs times --threads");
  const StudyConfig study = chosen_study(file, values);
  const int processors = available_processors();
  const int at_once = jobs > 0 ? jobs : processors;
  if (values.count("list") != 0 || values.count("dry-run") != 0) {
    const StudyPlan plan = plan_study(study);
    if (values.count("list") != 0) print_runs(plan);
    if (values.count("dry-run") == 0) return ExitCode::kSuccess;
    const std::string usual = "runs/" + study.name;
    const bool can_begin = print_needs(
        plan, text_of(values, "out", is_folder(usual) ? usual : ""), at_once,
        threads > 0 ? threads : std::max(1, processors / at_once), values["stop-before"].as<int>());
    return can_begin ? ExitCode::kSuccess : ExitCode::kBadInput;
  }
  StudyOptions options;
  options.directory = text_of(values, "out", "runs/" + study.name);
  output_folder(options.directory.string(), "ablate: --out");
  options.jobs = at_once;
  options.threads = threads;
  options.stop = &stop_requested();
  StudyLine line;
  options.say = [&](const std::string& text) {
    line.clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  options.progress = [&](const std::string& text) { line.update(text); };
  const bool submits = values["launcher"].as<std::string>() == "slurm";
  return submits ? submit(values, study, options) : run_here(values, study, options, arguments);
}

}  // namespace fp8lab::cli
