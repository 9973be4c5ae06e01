#include "src/study/study.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <thread>

#include "emulation/base/error.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/file_kind.hpp"
#include "src/io/study_log.hpp"
#include "src/study/process.hpp"
#include "src/study/study_folder.hpp"
#include "src/train/run_check.hpp"

namespace fp8lab {
namespace {

bool is_shared(const StudyConfig& study, const StageConfig& stage) {
  return std::find(study.shared_stages.begin(), study.shared_stages.end(), stage.name) !=
         study.shared_stages.end();
}

void keep_stages(const StudyConfig& study, bool shared, RunConfig& config) {
  auto& stages = config.stages;
  stages.erase(
      std::remove_if(stages.begin(), stages.end(),
                     [&](const StageConfig& stage) { return is_shared(study, stage) != shared; }),
      stages.end());
  if (stages.empty()) {
    throw Error(fmt::format("study '{}': shared_stages leaves {} without a stage", study.name,
                            shared ? "the shared run" : "the arms"));
  }
}

/// Arms that agree in this are compared: seed, data, model, optimizer and schedules. It leaves out
/// the recipes, and what changes no bit of a run: its name, what it logs, and the backend, but for
/// the truth path, whose arithmetic is another.
std::string pairing_key(const RunConfig& config) {
  RunConfig neutral = config;
  neutral.recipe.clear();
  neutral.name.clear();
  neutral.logging = LoggingConfig{};
  if (neutral.backend != "truth") neutral.backend = RunConfig{}.backend;
  for (StageConfig& stage : neutral.stages) stage.recipe.clear();
  return to_toml(neutral);
}

/// Fills in which arms are baselines and which arm is compared with which: the one owner of the
/// pairing of a study. Of several baselines that an arm could be compared with, the first counts.
void pair_with_baselines(const StudyConfig& study, std::vector<PlannedArm>& arms) {
  std::map<std::string, std::string> baselines;  // the baseline arm of every key
  std::vector<std::string> keys;
  for (PlannedArm& arm : arms) {
    keys.push_back(pairing_key(arm.config));
    arm.is_baseline = runs_baseline(study, arm.config);
    if (arm.is_baseline) baselines.emplace(keys.back(), arm.name);
  }
  for (std::size_t i = 0; i < arms.size(); ++i) {
    const auto baseline = baselines.find(keys[i]);
    if (!arms[i].is_baseline && baseline != baselines.end()) {
      arms[i].baseline_arm = baseline->second;
    }
  }
}

/// The configuration again, with what follows from it: its text and its hash.
RunConfig resolved(const RunConfig& config) {
  return parse_run_config(to_toml(config), fmt::format("run '{}'", config.name), {});
}

ChildTask make_task(const RunConfig& config, const StudyOptions& options, int jobs) {
  const auto directory = options.directory / config.name;
  make_directories(directory);
  write_file_atomically(directory / "config.toml", config.text);
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, static_cast<int>(processors) / jobs);
  std::vector<std::string> arguments = {
      "train", "--config=" + (directory / "config.toml").string(), "--out=" + directory.string(),
      fmt::format("--threads={}", threads), "--arm=" + config.name};
  if (is_present(directory / "run.h5")) arguments.push_back("--resume");
  return {config.name, arguments, directory / "log.txt", nullptr,
          lock_of_run(options.directory, config.name)};
}

/// Stopped by us, with or without the time for a checkpoint.
bool was_interrupted(const ChildResult& child, const StudyOptions& options) {
  return child.exit_code == 4 || (child.signal == SIGTERM && options.stop->load());
}

void count(const std::vector<ChildResult>& results, const StudyOptions& options,
           StudyResult& total) {
  for (const ChildResult& result : results) {
    if (result.exit_code == 0) {
      ++total.complete;
    } else if (was_interrupted(result, options)) {
      ++total.interrupted;
    } else {
      ++total.failed;
    }
  }
}

/// How a child ended; of one that failed its last line, and where the rest is.
std::string describe(const ChildResult& child, const StudyOptions& options) {
  if (child.exit_code == 0) return fmt::format("complete after {:.0f} s", child.seconds);
  if (was_interrupted(child, options)) {
    return fmt::format("interrupted after {:.0f} s", child.seconds);
  }
  const std::string how = child.signal == 0 ? fmt::format("failed with status {}", child.exit_code)
                                            : fmt::format("killed by signal {}", child.signal);
  return fmt::format("{} after {:.0f} s: {} (log: {})", how, child.seconds,
                     child.last_line.empty() ? "it wrote nothing" : child.last_line,
                     child.log.string());
}

/// True for a shared run that one of `arms` starts from.
bool is_needed(const RunConfig& shared, const std::vector<const PlannedArm*>& arms) {
  return std::any_of(arms.begin(), arms.end(),
                     [&](const PlannedArm* arm) { return arm->shared_run == shared.name; });
}

/// Trains the shared runs that `arms` start from, unless they are done; one that another process
/// trains is waited for.
void run_shared(const StudyPlan& plan, const std::vector<const PlannedArm*>& arms,
                const StudyOptions& options, RunCheck& check, StudyResult& result) {
  std::vector<ChildTask> tasks;
  for (const RunConfig& config : plan.shared) {
    if (!is_needed(config, arms)) continue;
    const auto lock_path = lock_of_run(options.directory, config.name);
    make_directories(lock_path.parent_path());
    std::optional<FileLock> lock = wait_for_lock(lock_path, config.name, options);
    if (!lock) break;  // stopped
    check_runs_are_those_of(plan, options.directory, check);
    if (is_complete(options.directory, config.name)) continue;
    tasks.push_back(make_task(config, options, options.jobs));
    tasks.back().lock = std::make_shared<FileLock>(std::move(*lock));
    options.say(config.name + ": starts");
  }
  if (tasks.empty()) return;
  check.release_backends();
  auto results = run_children(tasks, options.jobs, *options.stop, [&](const ChildResult& child) {
    options.say(fmt::format("{}: {}", child.name, describe(child, options)));
  });
  std::erase_if(results, [](const ChildResult& child) { return child.exit_code == 0; });
  count(results, options, result);
  tasks.clear();
  check_runs_are_those_of(plan, options.directory, check);
}

/// Those whose shared run is complete; of the others it says so.
std::vector<const PlannedArm*> with_their_start(const std::vector<const PlannedArm*>& arms,
                                                const StudyOptions& options) {
  std::vector<const PlannedArm*> ready;
  for (const PlannedArm* arm : arms) {
    if (arm->shared_run.empty() || is_complete(options.directory, arm->shared_run)) {
      ready.push_back(arm);
    } else {
      options.say(fmt::format("{}: not begun, {} is not complete", arm->name, arm->shared_run));
    }
  }
  return ready;
}

/// The arm as it is trained.
RunConfig with_start(const PlannedArm& arm, const StudyOptions& options) {
  if (arm.shared_run.empty()) return arm.config;
  RunConfig config = start_from_shared(arm, options.directory);
  if (is_present(config.init_from)) return config;
  const auto folder = config.init_from.parent_path().string();
  throw Error(
      fmt::format("{} is missing, although that run is complete; remove the folder {} to "
                  "train it anew",
                  config.init_from.string(), folder));
}

/// The arms that this process is to train. What could not be trained is refused here.
std::vector<const PlannedArm*> arms_to_run(const StudyPlan& plan, const StudyOptions& options,
                                           RunCheck& run_check, StudyResult& result) {
  std::vector<const PlannedArm*> arms;
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    const PlannedArm& arm = plan.arms[i];
    if (options.index && *options.index != static_cast<std::int64_t>(i)) continue;
    if (is_complete(options.directory, arm.name)) {
      ++result.complete;
      options.say(fmt::format("{}: complete already", arm.name));
    } else {
      arms.push_back(&arm);
    }
  }
  const auto check = [&](const RunConfig& config) {
    try {
      run_check.check(config);
    } catch (const Error& error) {
      throw Error(fmt::format("run '{}': {}", config.name, error.what()));
    }
  };
  for (const RunConfig& config : plan.shared) {
    if (is_needed(config, arms) && !is_complete(options.directory, config.name)) check(config);
  }
  for (const PlannedArm* arm : arms) check(arm->config);
  return arms;
}

/// A process of this study that was killed leaves runs that end a moment later.
void wait_for_left_runs(const std::vector<const PlannedArm*>& arms, const StudyOptions& options) {
  constexpr double kSeconds = 60;
  for (const PlannedArm* arm : arms) {
    const auto path = lock_of_run(options.directory, arm->name);
    if (!is_folder(path.parent_path())) continue;
    if (!wait_for_lock(path, arm->name, options, kSeconds) && !options.stop->load()) {
      throw Error(fmt::format("arm '{}' is still being trained for {}; end that process first",
                              arm->name, owner_of(path)));
    }
  }
}

/// The lock of the one arm that this process is to run, so that a second process for the same arm
/// is refused before either does anything.
std::shared_ptr<FileLock> lock_arm(const PlannedArm& arm, const StudyOptions& options) {
  const auto path = lock_of_run(options.directory, arm.name);
  make_directories(path.parent_path());
  std::optional<FileLock> lock = FileLock::try_acquire(path);
  if (lock) return std::make_shared<FileLock>(std::move(*lock));
  throw Error(fmt::format("arm '{}' is being run by {}", arm.name, owner_of(path)));
}

/// One process at a time, so that the file of the last one is the newest.
void rewrite_study_file(const StudyConfig& study, const StudyPlan& plan,
                        const StudyOptions& options, RunCheck& check) {
  const auto path = options.directory / ".study.h5";
  const std::optional<FileLock> lock = wait_for_lock(path, "study.h5", options);
  if (!lock) {
    options.say(fmt::format("study.h5 was not rewritten: in use by {}", owner_of(path)));
    return;
  }
  check_runs_are_those_of(plan, options.directory, check);
  write_study(options.directory / "study.h5", describe_study(study, plan, options.directory));
}

void check_index(const StudyPlan& plan, const StudyOptions& options) {
  const auto arms = static_cast<std::int64_t>(plan.arms.size());
  if (!options.index || (*options.index >= 0 && *options.index < arms)) return;
  throw Error(fmt::format("--index {}: the study has arms 0 to {}", *options.index, arms - 1));
}

}  // namespace

StudyPlan plan_study(const StudyConfig& study) {
  StudyPlan plan;
  for (const SharedRun& shared : study.shared_runs) {
    RunConfig config = configure(study, "run '" + shared.name + "'", shared.assignments);
    config.name = shared.name;
    keep_stages(study, true, config);
    plan.shared.push_back(resolved(config));
  }
  for (const StudyArm& arm : study.arms) {
    RunConfig config = configure(study, "arm '" + arm.name + "'", arm.assignments);
    config.name = arm.name;
    if (!arm.shared_run.empty()) {
      keep_stages(study, false, config);
      config.init_from.clear();  // the shared run starts from it, the arms from the shared run
    }
    plan.arms.push_back({arm.name, resolved(config), false, "", arm.shared_run, arm.assignments});
  }
  pair_with_baselines(study, plan.arms);
  return plan;
}

StudyResult run_study(const StudyConfig& study, const StudyOptions& options) {
  const StudyPlan plan = plan_study(study);
  check_index(plan, options);
  make_directories(options.directory);
  const FileLock lock = lock_study(plan, options);
  std::shared_ptr<FileLock> arm_lock;
  if (options.index)
    arm_lock = lock_arm(plan.arms[static_cast<std::size_t>(*options.index)], options);
  RunCheck check(options.make_backend);
  check_runs_are_those_of(plan, options.directory, check);
  // A margin counts only when it was stated before there were results.
  if (study.design) rewrite_study_file(study, plan, options, check);
  StudyResult result;
  std::vector<const PlannedArm*> arms = arms_to_run(plan, options, check, result);
  if (!options.index) wait_for_left_runs(arms, options);
  run_shared(plan, arms, options, check, result);
  arms = with_their_start(arms, options);
  std::vector<RunConfig> configs;
  for (const PlannedArm* arm : arms) configs.push_back(with_start(*arm, options));
  std::vector<ChildTask> tasks;
  for (const RunConfig& config : configs) {
    tasks.push_back(make_task(config, options, options.jobs));
    tasks.back().lock = arm_lock;
  }
  check.release_backends();
  std::size_t done = 0;
  const auto results =
      run_children(tasks, options.jobs, *options.stop, [&](const ChildResult& child) {
        options.say(fmt::format("{}: {} ({} of {} arms)", child.name, describe(child, options),
                                ++done, tasks.size()));
      });
  count(results, options, result);
  rewrite_study_file(study, plan, options, check);
  return result;
}

}  // namespace fp8lab
