#include "src/study/study.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/study/process.hpp"
#include "src/study/study_folder.hpp"
#include "src/study/study_progress.hpp"
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
    throw InputError({.where = fmt::format("study '{}'", study.name),
                      .key = "shared_stages",
                      .reason = fmt::format("leaves {} without a stage",
                                            shared ? "the shared run" : "the arms")});
  }
}

/// Returns the settings that two arms must share to be compared: seed, data, model, optimizer and
/// schedules. Leaves out the recipes, the replaced error sources, and settings that change no bit
/// of a run: its name, logging, warnings, recomputation, and the backend (except the truth path,
/// whose arithmetic differs).
std::string pairing_key(const RunConfig& config) {
  RunConfig neutral = config;
  neutral.recipe.clear();
  neutral.exact.clear();
  neutral.name.clear();
  neutral.logging = LoggingConfig{};
  neutral.warnings = WarningsConfig{};
  neutral.memory = MemoryConfig{};
  neutral.memory.loss_chunk = config.memory.loss_chunk;  // changes the order of a sum
  if (neutral.backend != "truth") neutral.backend = RunConfig{}.backend;
  for (StageConfig& stage : neutral.stages) {
    stage.recipe.clear();
    stage.recipe_at.clear();
    stage.fallback.reset();
  }
  return to_toml(neutral);
}

/// Returns the pairing key of the shared run that an arm starts from; empty if the arm
/// trains all stages itself.
std::string start_of(const StudyPlan& plan, const PlannedArm& arm) {
  for (const RunConfig& shared : plan.shared) {
    if (shared.name == arm.shared_run) return pairing_key(shared);
  }
  return {};
}

/// Determines which arms are baselines and which baseline each arm is compared with. No other code
/// decides the pairing. `twins` are the configurations that the arms would have as baselines. An
/// arm that starts from a shared run is compared with a baseline whose start differs only in
/// recipes; an arm that trains all stages itself may be compared with any start. If several
/// baselines fit, the first is used.
void pair_with_baselines(const StudyConfig& study, const std::vector<RunConfig>& twins,
                         StudyPlan& plan) {
  std::map<std::string, std::string> baselines;  // by key and start, and by key alone
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    PlannedArm& arm = plan.arms[i];
    keys.push_back(pairing_key(twins[i]));
    arm.is_baseline = runs_baseline(study, arm.config) && pairing_key(arm.config) == keys.back();
    if (!arm.is_baseline) continue;
    baselines.emplace(keys.back() + start_of(plan, arm), arm.name);
    baselines.emplace(keys.back(), arm.name);
  }
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    PlannedArm& arm = plan.arms[i];
    const auto baseline = baselines.find(keys[i] + start_of(plan, arm));
    if (!arm.is_baseline && baseline != baselines.end()) arm.baseline_arm = baseline->second;
  }
}

/// Returns the configuration with its derived text and hash.
RunConfig resolved(const RunConfig& config) {
  return parse_run_config(to_toml(config), fmt::format("run '{}'", config.name), {});
}

ChildTask make_task(const RunConfig& config, const StudyOptions& options, int jobs) {
  const auto directory = options.directory / config.name;
  make_directories(directory);
  write_file_atomically(directory / "config.toml", config.text);
  const int processors = available_processors();
  const int threads = options.threads > 0 ? options.threads : std::max(1, processors / jobs);
  std::vector<std::string> arguments = {
      "train", "--config=" + (directory / "config.toml").string(), "--out=" + directory.string(),
      fmt::format("--threads={}", threads), "--arm=" + config.name};
  if (is_present(directory / "run.h5")) arguments.push_back("--resume");
  ChildTask task{config.name, arguments, directory / "log.txt", nullptr,
                 lock_of_run(options.directory, config.name)};
  if (options.progress) {
    task.step = std::make_shared<StepSlot>();
    task.arguments.push_back(fmt::format("--step-descriptor={}", task.step->descriptor()));
  }
  return task;
}

/// Returns true if this process stopped the child, whether or not the child
/// could write a checkpoint.
bool was_interrupted(const ChildResult& child, const StudyOptions& options) {
  return child.exit_code == 4 || (child.signal == SIGTERM && options.stop->load());
}

void count(const std::vector<ChildResult>& results, const StudyOptions& options,
           StudyResult& total) {
  for (const ChildResult& result : results) {
    if (result.is_complete()) {
      ++total.complete;
    } else if (was_interrupted(result, options)) {
      ++total.interrupted;
    } else {
      ++total.failed;
    }
  }
}

/// Returns the words that name the log of a child, and whether it says what to try.
std::string log_of(const ChildResult& child) {
  const bool has_ways = is_present(child.log) &&
                        read_file(child.log).find(std::string("\n") + kWayOn) != std::string::npos;
  return fmt::format("log{}: {}", has_ways ? " with what to try" : "", child.log.string());
}

/// Describes how a child ended; for a failure includes its last line and the path of its log.
std::string describe(const ChildResult& child, const StudyOptions& options) {
  if (child.is_complete()) {
    if (child.exit_code != kDivergedStatus) {
      return fmt::format("complete after {:.0f} s", child.seconds);
    }
    return fmt::format("complete after {:.0f} s, diverged ({})", child.seconds, log_of(child));
  }
  if (was_interrupted(child, options)) {
    return fmt::format("interrupted after {:.0f} s", child.seconds);
  }
  const std::string how = child.signal == 0 ? fmt::format("failed with status {}", child.exit_code)
                                            : fmt::format("killed by signal {}", child.signal);
  return fmt::format("{} after {:.0f} s: {} ({})", how, child.seconds,
                     child.last_line.empty() ? "it wrote nothing" : child.last_line, log_of(child));
}

/// Trains shared runs, unless another process has completed them in the meantime; waits for runs
/// that another process is training.
void run_shared(const StudyPlan& plan, const std::vector<const RunConfig*>& shared,
                const StudyOptions& options, StudyProgress& progress, RunCheck& check,
                StudyResult& result) {
  std::vector<ChildTask> tasks;
  for (const RunConfig* config : shared) {
    const auto lock_path = lock_of_run(options.directory, config->name);
    make_directories(lock_path.parent_path());
    std::optional<FileLock> lock = wait_for_lock(lock_path, config->name, options);
    if (!lock) break;  // stopped
    check_runs_are_those_of(plan, options.directory, check);
    if (is_complete(options.directory, config->name)) continue;
    tasks.push_back(make_task(*config, options, options.jobs));
    tasks.back().lock = std::make_shared<FileLock>(std::move(*lock));
    options.say(config->name + ": starts");
  }
  if (tasks.empty()) return;
  check.release_backends();
  auto results = run_children(
      tasks, options.jobs, *options.stop,
      [&](const ChildResult& child) {
        progress.finished(child);
        options.say(fmt::format("{}: {}", child.name, describe(child, options)));
      },
      [&](const std::vector<RunningChild>& children) { progress.watch(children); });
  std::erase_if(results, [&](const ChildResult& child) {
    return child.is_complete() && options.only != child.name;  // only requested runs count
  });
  count(results, options, result);
  tasks.clear();
  check_runs_are_those_of(plan, options.directory, check);
}

/// Returns the arms whose shared run is complete; reports the others.
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

/// Returns the arm's configuration as it is trained.
RunConfig with_start(const PlannedArm& arm, const StudyOptions& options) {
  if (arm.shared_run.empty()) return arm.config;
  RunConfig config = start_from_shared(arm, options.directory);
  if (is_present(config.init_from)) return config;
  const auto folder = config.init_from.parent_path().string();
  throw InputError({.where = config.init_from.string(),
                    .reason = "missing, although that run is complete",
                    .remedy = fmt::format("remove the folder {} to train it anew", folder)});
}

/// Waits for the runs of a killed process of this study, which end shortly after it.
void wait_for_left_runs(const std::vector<const PlannedArm*>& arms, const StudyOptions& options) {
  constexpr double kSeconds = 60;
  for (const PlannedArm* arm : arms) {
    const auto path = lock_of_run(options.directory, arm->name);
    if (!is_folder(path.parent_path())) continue;
    if (!wait_for_lock(path, arm->name, options, kSeconds) && !options.stop->load()) {
      throw InputError({.noun = "arm",
                        .key = arm->name,
                        .reason = fmt::format("is still being trained for {}", owner_of(path)),
                        .remedy = "end that process first"});
    }
  }
}

/// Locks the single arm that this process runs, so that a second process for the same arm is
/// refused before either of them starts work.
std::shared_ptr<FileLock> lock_arm(const PlannedArm& arm, const StudyOptions& options) {
  const auto path = lock_of_run(options.directory, arm.name);
  make_directories(path.parent_path());
  std::optional<FileLock> lock = FileLock::try_acquire(path);
  if (lock) return std::make_shared<FileLock>(std::move(*lock));
  throw InputError({.noun = "arm",
                    .key = arm.name,
                    .reason = fmt::format("is being run by {}", owner_of(path))});
}

/// Returns the arm of that name; null for a shared run. Throws Error for any other name.
const PlannedArm* find_arm(const StudyPlan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const PlannedArm& arm : plan.arms) {
    if (arm.name == name) return &arm;
    names.push_back(arm.name);
  }
  for (const RunConfig& shared : plan.shared) {
    if (shared.name == name) return nullptr;
    names.push_back(shared.name);
  }
  throw InputError(
      {.noun = "the study has no run", .key = name, .nearest = did_you_mean(name, names)});
}

/// Trains the unfinished runs, or only the one that `only` names, with `jobs` arms at a time.
StudyResult run_alone(const StudyPlan& plan, const StudyOptions& options, RunCheck& check,
                      const std::shared_ptr<FileLock>& arm_lock) {
  StudyResult result;
  const UnfinishedRuns unfinished = find_unfinished_runs(plan, options, check);
  result.complete = unfinished.complete;
  if (!options.only) wait_for_left_runs(unfinished.arms, options);
  std::vector<const RunConfig*> left;
  for (const PlannedArm* arm : unfinished.arms) left.push_back(&arm->config);
  StudyProgress progress(unfinished.shared, left, options.jobs, options.progress);
  run_shared(plan, unfinished.shared, options, progress, check, result);
  const auto arms = with_their_start(unfinished.arms, options);
  std::vector<RunConfig> configs;
  for (const PlannedArm* arm : arms) configs.push_back(with_start(*arm, options));
  std::vector<ChildTask> tasks;
  for (const RunConfig& config : configs) {
    tasks.push_back(make_task(config, options, options.jobs));
    tasks.back().lock = arm_lock;
  }
  check.release_backends();
  std::size_t done = 0;
  const auto results = run_children(
      tasks, options.jobs, *options.stop,
      [&](const ChildResult& child) {
        progress.finished(child);
        options.say(fmt::format("{}: {} ({} of {} arms)", child.name, describe(child, options),
                                ++done, tasks.size()));
      },
      [&](const std::vector<RunningChild>& children) { progress.watch(children); });
  count(results, options, result);
  return result;
}

/// The work of one rank: repeatedly takes a run that no process holds and trains it. Ranks
/// communicate only through locks:
///   ARM/.ablate  held by the rank that trains the run; kept after a failure, so that no other rank
///                tries the run again
///   .working     shared by the ranks that train, and by their children; a rank that gets it
///                exclusively knows that no rank trains. No rank ends before that, since another
///                rank must take over the run of a rank that died
///   .ranks       shared by the ranks that may still take a run
class RankWork {
 public:
  RankWork(const StudyPlan& plan, const UnfinishedRuns& unfinished, const StudyOptions& options,
           RunCheck& check)
      : plan_(plan), options_(options), check_(check) {
    for (const RunConfig* config : unfinished.shared) runs_.push_back({config, nullptr});
    shared_ = runs_.size();
    for (const PlannedArm* arm : unfinished.arms) runs_.push_back({&arm->config, arm});
  }

  StudyResult run() {
    StudyResult result;
    std::optional<FileLock> present = wait_to_share(ranks_);
    while (!options_.stop->load()) {
      if (work(result)) continue;
      const std::optional<FileLock> alone = FileLock::try_acquire(working_);
      const bool more = take().has_value();
      if (alone && !more) break;
      if (!more) std::this_thread::sleep_for(kPause);
    }
    present.reset();
    // Locks of failed runs are kept until no rank looks for runs any more.
    while (!options_.stop->load() && !FileLock::try_acquire(ranks_)) {
      std::this_thread::sleep_for(kPause);
    }
    return result;
  }

 private:
  static constexpr std::chrono::milliseconds kPause{200};
  struct Run {
    const RunConfig* config;
    const PlannedArm* arm;  ///< null for a shared run
  };
  struct Taken {
    Run run;
    std::shared_ptr<FileLock> lock;
  };

  bool is_done(const std::string& name) {
    if (done_.count(name) == 0 && is_complete(options_.directory, name)) done_.insert(name);
    return done_.count(name) != 0;
  }

  /// Returns a run that can begin and that no process holds, shared runs first. Each rank starts
  /// its search at a different index, to avoid contention for the same run.
  std::optional<Taken> take() {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Run& run =
          runs_[i < shared_ ? turned(i, 0, shared_) : turned(i, shared_, runs_.size())];
      const std::string& name = run.config->name;
      if (done_.count(name) != 0) continue;
      if (run.arm != nullptr && !run.arm->shared_run.empty() && !is_done(run.arm->shared_run)) {
        continue;
      }
      const auto path = lock_of_run(options_.directory, name);
      make_directories(path.parent_path());
      std::optional<FileLock> lock = FileLock::try_acquire(path);
      if (lock && !is_done(name)) return Taken{run, std::make_shared<FileLock>(std::move(*lock))};
    }
    return std::nullopt;
  }

  /// Returns index i of [begin, end), counted cyclically from this rank's starting index.
  std::size_t turned(std::size_t i, std::size_t begin, std::size_t end) const {
    const auto place = static_cast<std::size_t>(options_.rank->place);
    const auto count = static_cast<std::size_t>(options_.rank->count);
    const std::size_t size = end - begin;
    return begin + (i - begin + place * size / count) % size;
  }

  /// Trains one run, if one is available.
  bool work(StudyResult& result) {
    const std::optional<FileLock> working = wait_to_share(working_);
    const std::optional<Taken> taken = working ? take() : std::nullopt;
    if (!taken) return false;
    const Run& run = taken->run;
    const RunConfig config = run.arm == nullptr ? *run.config : with_start(*run.arm, options_);
    ChildTask task = make_task(config, options_, 1);
    task.lock = taken->lock;
    task.inherited = {working->descriptor()};
    check_.release_backends();
    options_.say(config.name + ": starts");
    const auto ended = run_children({task}, 1, *options_.stop, [&](const ChildResult& child) {
      options_.say(fmt::format("{}: {}", child.name, describe(child, options_)));
    });
    const bool complete = !ended.empty() && ended.front().is_complete();
    if (!complete) held_.push_back(taken->lock);
    if (!complete || run.arm != nullptr) count(ended, options_, result);
    if (run.arm == nullptr) check_runs_are_those_of(plan_, options_.directory, check_);
    return true;
  }

  /// Another rank may briefly hold the lock exclusively, to check whether any process shares it.
  std::optional<FileLock> wait_to_share(const std::filesystem::path& path) const {
    while (!options_.stop->load()) {
      if (auto lock = FileLock::try_acquire(path, FileLock::Mode::shared)) return lock;
      std::this_thread::sleep_for(kPause / 10);
    }
    return std::nullopt;
  }

  const StudyPlan& plan_;
  const StudyOptions& options_;
  RunCheck& check_;
  std::vector<Run> runs_;   ///< shared runs first
  std::size_t shared_ = 0;  ///< number of shared runs
  std::set<std::string> done_;
  std::vector<std::shared_ptr<FileLock>> held_;  ///< locks of runs that failed in this rank
  std::filesystem::path working_ = options_.directory / ".working";
  std::filesystem::path ranks_ = options_.directory / ".ranks";
};

/// Returns the progress of the whole study, once no rank works on it.
StudyResult result_of_all(const StudyPlan& plan, const StudyOptions& options) {
  StudyResult result;
  for (const PlannedArm& arm : plan.arms) {
    const bool complete = is_complete(options.directory, arm.name);
    ++(complete ? result.complete : options.stop->load() ? result.interrupted : result.failed);
  }
  return result;
}

StudyResult run_as_rank(const StudyPlan& plan, const StudyOptions& options, RunCheck& check) {
  const UnfinishedRuns unfinished = find_unfinished_runs(plan, options, check);
  const StudyResult own = RankWork(plan, unfinished, options, check).run();
  if (options.rank->place > 0) return own;
  with_their_start(unfinished.arms, options);  // reports the arms whose shared run is incomplete
  return result_of_all(plan, options);
}

/// Lets the first rank end last: mpirun kills the other ranks if a rank
/// exits with a failure status.
void wait_for_other_ranks(const StudyOptions& options) {
  constexpr double kSeconds = 30;
  if (options.rank && options.rank->place == 0) {
    wait_for_lock(options.directory / ".ablate", "the other ranks", options, kSeconds);
  }
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
  const auto planned = [&](const StudyArm& arm, RunConfig config) {
    config.name = arm.name;
    if (!study.shared_stages.empty()) keep_stages(study, false, config);
    // The shared run starts from these weights, the arms from the shared run.
    if (!arm.shared_run.empty()) config.init_from.clear();
    return resolved(config);
  };
  std::vector<RunConfig> twins;
  for (const StudyArm& arm : study.arms) {
    const RunConfig config = configure(study, "arm '" + arm.name + "'", arm.assignments);
    plan.arms.push_back(
        {arm.name, planned(arm, config), false, "", arm.shared_run, arm.assignments});
    twins.push_back(study.baseline_set.empty() ? plan.arms.back().config
                                               : planned(arm, configure_as_baseline(study, arm)));
  }
  pair_with_baselines(study, twins, plan);
  return plan;
}

StudyResult run_study(const StudyConfig& study, const StudyPlan& plan,
                      const StudyOptions& options) {
  const PlannedArm* arm = options.only ? find_arm(plan, *options.only) : nullptr;
  make_directories(options.directory);
  const bool whole = !options.only && !options.rank;
  std::optional<FileLock> lock = lock_study(
      plan, options.directory, whole ? FileLock::Mode::exclusive : FileLock::Mode::shared);
  const std::shared_ptr<FileLock> arm_lock = arm != nullptr ? lock_arm(*arm, options) : nullptr;
  RunCheck check(options.make_backend);
  check_runs_are_those_of(plan, options.directory, check);
  // A margin is valid only if it was stated before there were results.
  if (study.design) rewrite_study_file(study, plan, options, check);
  const StudyResult result =
      options.rank ? run_as_rank(plan, options, check) : run_alone(plan, options, check, arm_lock);
  rewrite_study_file(study, plan, options, check);
  lock.reset();
  wait_for_other_ranks(options);
  return result;
}

}  // namespace fp8lab
