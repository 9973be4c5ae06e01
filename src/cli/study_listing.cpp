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
#include "src/backend/factory.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/config/stage_recipes.hpp"
#include "src/study/study_folder.hpp"
#include "src/train/plan.hpp"

namespace fp8lab::cli {
namespace {

/// Of the recipes that the stages run under, each once.
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

/// What a run needs, or why that is unknown.
struct KnownNeeds {
  RunNeeds needs;
  std::string unknown;  ///< empty: it is known
};

/// What runs need; those that differ in name and seed alone are planned once.
class NeedsOfRuns {
 public:
  explicit NeedsOfRuns(int threads) : threads_(threads) {}

  const KnownNeeds& of(const RunConfig& config) {
    RunConfig alike = config;
    alike.name.clear();
    alike.seed = RunConfig{}.seed;
    const auto [place, is_new] = known_.try_emplace(to_toml(alike));
    if (!is_new) return place->second;
    try {
      place->second.needs = plan(config);
    } catch (const Error& error) {
      place->second.unknown = error.what();
    }
    phase_.begin("");
    return place->second;
  }

 private:
  RunNeeds plan(const RunConfig& config) {
    std::unique_ptr<Backend>& backend = backends_[config.backend];
    if (backend == nullptr) backend = make_backend(config.backend, threads_);
    return plan_needs(config, *backend, [&](const std::string& what) {
      phase_.begin(fmt::format("run {}: {}", config.name, what));
    });
  }

  int threads_;
  std::map<std::string, KnownNeeds> known_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  PhaseLine phase_;
};

/// "a, b, c and 9 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 3;
  const std::size_t shown = std::min(kNamed, names.size());
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
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

void print_needs(const StudyPlan& plan, const std::filesystem::path& directory, int jobs,
                 int threads) {
  std::vector<const RunConfig*> runs;
  for (const RunConfig& shared : plan.shared) runs.push_back(&shared);
  for (const PlannedArm& arm : plan.arms) runs.push_back(&arm.config);
  const std::size_t all = runs.size();
  if (!directory.empty()) {
    std::erase_if(runs, [&](const RunConfig* run) { return is_complete(directory, run->name); });
    fmt::print("plan: {} runs, {} complete in {}\n", all, all - runs.size(), directory.string());
  } else {
    fmt::print("plan: {} runs\n", all);
  }
  NeedsOfRuns needs_of_runs(threads);
  double seconds = 0;
  std::vector<std::pair<std::string, std::vector<std::string>>> unknown;  // reason, runs
  std::size_t known = 0;
  for (const RunConfig* run : runs) {
    const KnownNeeds& found = needs_of_runs.of(*run);
    if (found.unknown.empty()) {
      ++known;
      seconds += found.needs.seconds;
      fmt::print("plan: {}: memory {:.1f} MiB, time about {:.3g} s\n", run->name,
                 static_cast<double>(found.needs.bytes) / 1048576.0, found.needs.seconds);
      continue;
    }
    auto same = std::find_if(unknown.begin(), unknown.end(),
                             [&](const auto& entry) { return entry.first == found.unknown; });
    if (same == unknown.end()) same = unknown.insert(same, {found.unknown, {}});
    same->second.push_back(run->name);
  }
  for (const auto& [reason, names] : unknown) {
    fmt::print("plan: {}: unknown: {}\n", listed(names), reason);
  }
  if (known == 0) return;
  fmt::print(
      "plan: time of all these about {:.3g} s, {} at once, without evaluations{}\n", seconds / jobs,
      jobs,
      known == runs.size() ? "" : fmt::format(" and without the {} unknown", runs.size() - known));
}

}  // namespace fp8lab::cli
