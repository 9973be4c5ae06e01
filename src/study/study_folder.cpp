#include "src/study/study_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <map>
#include <thread>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config_difference.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/study_log.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kNamedRuns = 4;

std::optional<RunStatus> read_stored(const fs::path& directory, const std::string& name) {
  const fs::path file = directory / name / "run.h5";
  if (!is_present(file)) return std::nullopt;
  return read_run_status(file);
}

/// Returns true for identity parts that are known only if the weights come from a file.
bool is_initial(const std::pair<std::string, std::string>& part) {
  return part.first == kInitialWeights || part.first == kInitialHistories;
}

Identity without(const Identity& identity, bool (*unwanted)(const Identity::value_type&)) {
  Identity result;
  std::copy_if(identity.begin(), identity.end(), std::back_inserter(result),
               [&](const Identity::value_type& part) { return !unwanted(part); });
  return result;
}

bool is_configuration(const Identity::value_type& part) { return part.first == "configuration"; }

/// Describes how a run differs from that of `config`, whose identity is `expected`; empty if they
/// are the same. Initial weights are compared only if `expected` contains them.
std::string difference_from(const RunMeta& stored, const RunConfig& config,
                            const Identity& expected) {
  if (stored.version < 2) {
    return "its run file is of an earlier version, which does not say what a run is made of";
  }
  const bool knows_start = std::any_of(expected.begin(), expected.end(), is_initial);
  const Identity known = knows_start ? stored.identity : without(stored.identity, is_initial);
  // The truth backend has wider arithmetic and thus other bits; all other
  // backends have the same bits.
  const bool truth_changed = (stored.backend == "truth") != (config.backend == "truth");
  if (difference(known, expected).empty() && !truth_changed) return {};
  const std::string keys = join_differences(recorded_differences(stored, config));
  const std::string contents =
      difference(without(known, is_configuration), without(expected, is_configuration));
  return keys + (keys.empty() || contents.empty() ? "" : "; ") + contents;
}

fs::path shared_checkpoint(const fs::path& directory, const std::string& shared_run) {
  return directory / shared_run / "checkpoint.safetensors";
}

/// Like difference_from for an arm of a study without shared stages.
std::string difference_alone(const RunMeta& stored, const RunConfig& arm, RunCheck& check) {
  const std::string text = difference_from(stored, arm, check.identity(arm));
  if (!text.empty() || !arm.init_from.empty()) return text;
  for (const std::string& key : run_differences(stored.config_text, arm.text)) {
    if (key.starts_with("init_from: ")) return key;
  }
  return {};
}

/// Like difference_from for an arm that starts from a shared run, as far as that run is complete.
/// If its checkpoint is missing, the recorded hash of its final weights is compared instead;
/// weights grown from them are then not compared.
std::string difference_after(const RunMeta& stored, const PlannedArm& arm,
                             const fs::path& directory, const std::optional<RunStatus>& shared,
                             RunCheck& check) {
  const RunConfig config = start_from_shared(arm, directory);
  const bool done = shared && shared->complete;
  if (done && is_present(config.init_from)) {
    return difference_from(stored, config, check.identity(config));
  }
  RunConfig anywhere = config;
  anywhere.init_from.clear();
  const std::string text = difference_from(stored, config, check.identity(anywhere));
  const bool truth = done && (stored.backend == "truth" || shared->meta.backend == "truth");
  if (!text.empty() || !done || truth || config.growth) return text;
  const std::string weights = hex16(shared->final_weight_hash);
  if (stored.initial_weights_hash == weights) return {};
  return fmt::format("{} was {}, now {}", kInitialWeights, stored.initial_weights_hash, weights);
}

/// Throws unless the checkpoint in the shared run's folder is the one that this run wrote.
void check_shared_checkpoint(const RunStatus& shared, const fs::path& file) {
  if (!shared.complete || !is_present(file)) return;
  const CheckpointSummary checkpoint = read_checkpoint(file);
  if (checkpoint.identity == hash_of(shared.meta.identity) && !shared.checkpoints.empty() &&
      checkpoint.hash == shared.checkpoints.back().hash) {
    return;
  }
  throw InputError({.where = file.string(),
                    .reason = fmt::format("not the one that {} wrote last",
                                          (file.parent_path() / "run.h5").string()),
                    .remedy = fmt::format("put that back, or remove the folder {} to train it anew",
                                          file.parent_path().string())});
}

struct Mismatch {
  std::string name, difference;
};

[[noreturn]] void refuse(const fs::path& directory, const std::vector<Mismatch>& runs) {
  std::string others;
  for (std::size_t i = 1; i < std::min(runs.size(), kNamedRuns); ++i) {
    others += fmt::format("{} '{}'", i == 1 ? "; so do" : ",", runs[i].name);
  }
  if (runs.size() > kNamedRuns) others += fmt::format(" and {} more", runs.size() - kNamedRuns);
  throw InputError({.where = directory.string(),
                    .noun = "the run",
                    .key = runs[0].name,
                    .reason = fmt::format("has other settings than those asked for: {}{}",
                                          runs[0].difference, others),
                    .remedy = fmt::format(
                        "give another --out, or remove the folder{} of {} to train anew",
                        runs.size() > 1 ? "s" : "", runs.size() > 1 ? "these runs" : "this run")});
}

/// Returns the owner of an arm's lock, if some process runs single arms of the study.
std::string owner_of_an_arm(const StudyPlan& plan, const fs::path& directory) {
  for (const PlannedArm& arm : plan.arms) {
    const fs::path path = lock_of_run(directory, arm.name);
    if (!is_present(path.string() + ".lock")) continue;
    if (!FileLock::try_acquire(path)) return fmt::format("arm '{}': {}", arm.name, owner_of(path));
  }
  return "processes that run single arms";
}

/// Returns true for a shared run that one of `arms` starts from.
bool is_needed(const RunConfig& shared, const std::vector<const PlannedArm*>& arms) {
  return std::any_of(arms.begin(), arms.end(),
                     [&](const PlannedArm* arm) { return arm->shared_run == shared.name; });
}

/// Returns the design stated in `study_h5`, or states it now.
StatedDesign state(const StudyDesign& design, const std::vector<ArmRecord>& arms,
                   const fs::path& study_h5) {
  const std::optional<StatedDesign> before = read_stated_design(study_h5);
  if (before && before->design == design) return *before;
  const auto begun = std::count_if(arms.begin(), arms.end(),
                                   [](const ArmRecord& arm) { return arm.last_step > 0; });
  return {design, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))), begun};
}

}  // namespace

bool is_complete(const fs::path& directory, const std::string& name) {
  const fs::path file = directory / name / "run.h5";
  return is_present(file) && read_run_status(file).complete;
}

RunConfig start_from_shared(const PlannedArm& arm, const fs::path& directory) {
  RunConfig config = arm.config;
  config.init_from = shared_checkpoint(directory, arm.shared_run);
  return parse_run_config(to_toml(config), fmt::format("run '{}'", config.name), {});
}

void check_runs_are_those_of(const StudyPlan& plan, const fs::path& directory, RunCheck& check) {
  std::vector<Mismatch> mismatches;
  std::map<std::string, std::optional<RunStatus>> shared;
  for (const RunConfig& config : plan.shared) {
    const auto& stored = shared[config.name] = read_stored(directory, config.name);
    if (!stored) continue;
    const std::string text = difference_alone(stored->meta, config, check);
    if (!text.empty()) mismatches.push_back({config.name, text});
    if (text.empty()) check_shared_checkpoint(*stored, shared_checkpoint(directory, config.name));
  }
  for (const PlannedArm& arm : plan.arms) {
    const std::optional<RunStatus> stored = read_stored(directory, arm.name);
    if (!stored) continue;
    const std::string text =
        arm.shared_run.empty()
            ? difference_alone(stored->meta, arm.config, check)
            : difference_after(stored->meta, arm, directory, shared[arm.shared_run], check);
    if (!text.empty()) mismatches.push_back({arm.name, text});
  }
  if (!mismatches.empty()) refuse(directory, mismatches);
}

StudyTable describe_study(const StudyConfig& study, const StudyPlan& plan,
                          const fs::path& directory) {
  StudyTable table{study.name, study.title, study.text, study.hash, study.baseline, {}, {}};
  for (const PlannedArm& planned : plan.arms) {
    ArmRecord arm;
    arm.name = planned.name;
    arm.run_file = fs::path(planned.name) / "run.h5";
    arm.recipe = planned.config.recipe;
    arm.seed = planned.config.seed;
    arm.config_hash = planned.config.hash;
    for (const Assignment& axis : planned.axes) arm.axes[axis.key] = axis.value;
    arm.is_baseline = planned.is_baseline;
    arm.baseline_arm = planned.baseline_arm;
    if (const std::optional<RunStatus> stored = read_stored(directory, planned.name)) {
      arm.complete = stored->complete;
      arm.last_step = stored->last_step;
      arm.final_weight_hash = stored->final_weight_hash;
    }
    table.arms.push_back(std::move(arm));
  }
  if (study.design) table.design = state(*study.design, table.arms, directory / "study.h5");
  return table;
}

UnfinishedRuns find_unfinished_runs(const StudyPlan& plan, const StudyOptions& options,
                                    RunCheck& run_check) {
  UnfinishedRuns found;
  const auto is_left = [&](const std::string& name) {
    if (!is_complete(options.directory, name)) return true;
    ++found.complete;
    const bool one_of_many = options.rank && options.rank->place > 0;
    if (!one_of_many) options.say(fmt::format("{}: complete already", name));
    return false;
  };
  for (const PlannedArm& arm : plan.arms) {
    if (options.only && *options.only != arm.name) continue;
    if (is_left(arm.name)) found.arms.push_back(&arm);
  }
  for (const RunConfig& config : plan.shared) {
    if (options.only == config.name
            ? is_left(config.name)
            : is_needed(config, found.arms) && !is_complete(options.directory, config.name)) {
      found.shared.push_back(&config);
    }
  }
  const auto check = [&](const RunConfig& config, bool start_is_to_come) {
    at_place(fmt::format("run '{}'", config.name),
             [&] { run_check.check(config, start_is_to_come); });
  };
  for (const RunConfig* config : found.shared) check(*config, false);
  for (const PlannedArm* arm : found.arms) check(arm->config, !arm->shared_run.empty());
  return found;
}

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

fs::path lock_of_run(const fs::path& directory, const std::string& name) {
  return directory / name / ".ablate";
}

std::string owner_of(const fs::path& lock_path) {
  // A holder writes its name right after it has taken the lock.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::string owner = FileLock::owner(lock_path);
  return owner.empty() ? "another process" : owner;
}

FileLock lock_study(const StudyPlan& plan, const fs::path& directory, FileLock::Mode mode) {
  const fs::path path = directory / ".ablate";
  std::optional<FileLock> lock = FileLock::try_acquire(path, mode);
  if (lock) return std::move(*lock);
  std::string owner = FileLock::owner(path);
  if (owner.empty()) {
    owner = mode == FileLock::Mode::exclusive ? owner_of_an_arm(plan, directory) : owner_of(path);
  }
  throw InputError(
      {.where = directory.string(), .reason = fmt::format("the study is being run by {}", owner)});
}

std::optional<FileLock> wait_for_lock(const fs::path& lock_path, const std::string& what,
                                      const StudyOptions& options, double limit_seconds) {
  if (std::optional<FileLock> taken = FileLock::try_acquire(lock_path)) return taken;
  options.say(fmt::format("{}: waiting for {}", what, owner_of(lock_path)));
  const Clock::time_point began = Clock::now();
  for (;;) {
    if (options.stop->load()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (std::optional<FileLock> taken = FileLock::try_acquire(lock_path)) return taken;
    const double waited = std::chrono::duration<double>(Clock::now() - began).count();
    if (limit_seconds > 0 && waited > limit_seconds) return std::nullopt;
  }
}

}  // namespace fp8lab
