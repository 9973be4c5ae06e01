#include "src/cli/study_listing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/study/study_folder.hpp"
#include "src/train/plan/memory_fit.hpp"
#include "src/train/plan/plan.hpp"
#include "src/train/run_check.hpp"

namespace fp8lab::cli {
namespace {

/// Returns the hashes of the recipes of the stages, each once.
std::string recipe_hashes(const RunConfig& config) {
  std::string text;
  for (const StageConfig& stage : config.stages) {
    for (const StageRecipe& recipe : recipes_of(config, stage)) {
      const std::string hash = load_recipe(recipe.name).hash;
      if (text.find(hash) == std::string::npos) text += (text.empty() ? "" : ",") + hash;
    }
  }
  return text;
}

/// The requirements of a run, or the reason why they are unknown.
struct KnownNeeds {
  RunNeeds needs;
  std::string unknown;  ///< reason; empty if they are known
  std::string refused;  ///< why train would refuse the run here; empty if it fits
};

/// The requirements of runs; runs that differ only in name and seed are planned once.
class NeedsOfRuns {
 public:
  explicit NeedsOfRuns(int threads) : threads_(threads) {}

  const KnownNeeds& of(const RunConfig& config) {
    RunConfig alike = config;
    alike.name.clear();
    alike.seed = RunConfig{}.seed;
    const auto [place, is_new] = known_.try_emplace(to_toml(alike));
    if (!is_new) return place->second;
    KnownNeeds& found = place->second;
    try {
      found.needs = plan(config);
    } catch (const Error& error) {
      found.unknown = error.what();
    }
    phase_.begin("");
    if (found.unknown.empty()) found.refused = refusal(config);
    return found;
  }

 private:
  RunNeeds plan(const RunConfig& config) {
    std::unique_ptr<Backend>& backend = backends_[config.backend];
    if (backend == nullptr) backend = make_backend(config.backend, threads_);
    return plan_needs(config, *backend, [&](const std::string& what) {
      phase_.begin(fmt::format("run {}: {}", config.name, what));
    });
  }

  std::string refusal(const RunConfig& config) {
    try {
      require_memory_of(config, *backends_.at(config.backend));
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  int threads_;
  std::map<std::string, KnownNeeds> known_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  PhaseLine phase_;
};

/// Returns "a, b, c and 9 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 3;
  const std::size_t shown = std::min(kNamed, names.size());
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// Reasons, each with the names of the runs to which it applies.
using Reasons = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_reason(const std::string& reason, const std::string& run, Reasons& reasons) {
  auto same = std::find_if(reasons.begin(), reasons.end(),
                           [&](const auto& entry) { return entry.first == reason; });
  if (same == reasons.end()) same = reasons.insert(same, {reason, {}});
  same->second.push_back(run);
}

/// Prints the last lines of a plan, about the runs that train would refuse here.
void print_refused(const Reasons& refused) {
  if (refused.empty()) return;
  fmt::print("plan: this plan is for a machine with more memory than this one\n");
  for (const auto& [reason, names] : refused) {
    fmt::print("plan: {}: train would refuse it here (status {}, as of this --dry-run): {}\n",
               listed(names), ExitCode::kBadInput, reason);
  }
}

/// Prints and returns the requirements of each of `runs`; adds runs that cannot
/// be planned to `unknown`, and those that train would refuse here to `refused`.
std::vector<RunNeeds> print_each(const std::vector<const RunConfig*>& runs, NeedsOfRuns& needs,
                                 Reasons& unknown, Reasons& refused) {
  std::vector<RunNeeds> known;
  for (const RunConfig* run : runs) {
    const KnownNeeds& found = needs.of(*run);
    if (found.unknown.empty()) {
      fmt::print("plan: {}: memory {:.1f} MiB, checkpoint {:.1f} MiB, time about {:.3g} s\n",
                 run->name, mib(found.needs.bytes), mib(found.needs.checkpoint),
                 found.needs.time.total());
      known.push_back(found.needs);
      if (!found.refused.empty()) add_reason(found.refused, run->name, refused);
    } else {
      add_reason(found.unknown, run->name, unknown);
    }
  }
  return known;
}

/// Prints the memory of runs of which `jobs` are trained in parallel.
void print_memory(const char* what, const std::vector<RunNeeds>& runs, std::size_t jobs) {
  if (runs.empty()) return;
  const MemoryTogether memory = memory_together(runs, jobs);
  fmt::print(
      "plan: memory of {}, {} at once, at most {:.1f} MiB of the {:.1f} MiB here, {:.1f} of these "
      "for copies of checkpoints",
      what, std::min(jobs, runs.size()), mib(memory.host + memory.copies), mib(machine_memory()),
      mib(memory.copies));
  fmt::print("{}\n",
             memory.device == 0 ? "" : fmt::format("; on devices {:.1f}", mib(memory.device)));
}

/// Returns the time of runs of which `jobs` are trained in parallel: the work is divided, but no
/// run is faster than on its own.
double seconds_of(const std::vector<RunNeeds>& runs, int jobs) {
  double sum = 0, longest = 0;
  for (const RunNeeds& run : runs) {
    sum += run.time.total();
    longest = std::max(longest, run.time.total());
  }
  return std::max(sum / jobs, longest);
}

}  // namespace

void print_runs(const StudyPlan& plan) {
  const auto print = [](const std::string& index, const RunConfig& config, const std::string& end) {
    fmt::print("{:>3} {} recipe={} seed={} configuration={} recipes={}{}\n", index, config.name,
               config.recipe, config.seed, config.hash, recipe_hashes(config), end);
  };
  for (const RunConfig& shared : plan.shared) print("-", shared, "");
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    const PlannedArm& arm = plan.arms[i];
    print(std::to_string(i), arm.config,
          " baseline=" + (arm.baseline_arm.empty() ? "-" : arm.baseline_arm));
  }
}

bool print_needs(const StudyPlan& plan, const std::filesystem::path& directory, int jobs,
                 int threads, int stop_before) {
  std::vector<const RunConfig*> shared, arms;
  for (const RunConfig& run : plan.shared) shared.push_back(&run);
  for (const PlannedArm& arm : plan.arms) arms.push_back(&arm.config);
  const std::size_t all = shared.size() + arms.size();
  // The capabilities of a device on another machine are checked there.
  RunCheck check([&](const std::string& name) {
    return make_backend(name == "cuda" ? "cpu" : name, threads);
  });
  if (!directory.empty()) check_runs_are_those_of(plan, directory, check);
  for (const std::vector<const RunConfig*>& runs : {shared, arms}) {
    for (const RunConfig* run : runs) {
      if (directory.empty() || !is_complete(directory, run->name)) check.check(*run);
    }
  }
  print_notes(check.notes());
  if (!directory.empty()) {
    const auto complete = [&](const RunConfig* run) { return is_complete(directory, run->name); };
    const std::size_t done = std::erase_if(shared, complete) + std::erase_if(arms, complete);
    fmt::print("plan: {} runs, {} complete in {}\n", all, done, directory.string());
  } else {
    fmt::print("plan: {} runs\n", all);
  }
  NeedsOfRuns needs(threads);
  Reasons unknown, refused;
  const std::vector<RunNeeds> of_shared = print_each(shared, needs, unknown, refused);
  const std::vector<RunNeeds> of_arms = print_each(arms, needs, unknown, refused);
  for (const auto& [reason, names] : unknown) {
    fmt::print("plan: {}: unknown: {}\n", listed(names), reason);
  }
  const std::size_t known = of_shared.size() + of_arms.size();
  if (known == 0) return unknown.empty();
  const auto at_once = static_cast<std::size_t>(jobs);
  print_memory("shared runs", of_shared, at_once);
  print_memory("arms", of_arms, at_once);
  const std::size_t missing = shared.size() + arms.size() - known;
  fmt::print("plan: time of all these about {:.3g} s, {} at once{}\n",
             seconds_of(of_shared, jobs) + seconds_of(of_arms, jobs), jobs,
             missing == 0 ? "" : fmt::format(", without the {} unknown", missing));
  double longest = 0;
  for (const auto* runs : {&of_shared, &of_arms}) {
    for (const RunNeeds& run : *runs) longest = std::max(longest, run.longest_step);
  }
  if (longest >= stop_before) {
    fmt::print(
        "plan: warning: the longest step takes about {:.3g} s, and Slurm sends SIGTERM {} s before "
        "a time limit: such a task loses its steps since the last checkpoint; give a longer "
        "--stop-before\n",
        longest, stop_before);
  }
  print_refused(refused);
  return unknown.empty() && refused.empty();
}

}  // namespace fp8lab::cli
