// fp8lab ablate: all arms of a study, continuing what is not complete.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/run_choice.hpp"
#include "src/config/config.hpp"
#include "src/study/study.hpp"
#include "src/study/study_folder.hpp"
#include "src/train/plan.hpp"
#include "src/train/stop_signal.hpp"

namespace fp8lab::cli {
namespace {

Options ablate_options() {
  Options options("fp8lab ablate --study FILE");
  options.add("study", value<std::string>(), "study file (TOML)");
  options.add("out", value<std::string>(), "study directory (default: runs/NAME)");
  options.add("set", value<std::vector<std::string>>(), "KEY=VALUE for every arm, repeatable");
  add_scale(options);
  options.add("jobs", value<int>(0), "arms at once; 0: one per processor");
  options.add("threads", value<int>(0), "threads of each arm; 0: processors / jobs");
  options.add("index", value<std::int64_t>(), "run only this arm (0, 1, ...), for Slurm arrays");
  options.add("launcher", value<std::string>("local"), "local");
  options.add("list",
              "print the arms with the hashes of configuration and recipes, then what the runs "
              "that --out lacks need in memory and time; run nothing");
  return options;
}

/// Of the recipes that the stages run under, each once.
std::string recipe_hashes(const RunConfig& config) {
  std::string text;
  for (const StageConfig& stage : config.stages) {
    const std::string hash = load_recipe(stage.recipe.empty() ? config.recipe : stage.recipe).hash;
    if (text.find(hash) == std::string::npos) text += (text.empty() ? "" : ",") + hash;
  }
  return text;
}

void print_plan(const StudyPlan& plan) {
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

/// What runs need; those that differ in name and seed alone are planned once.
class NeedsOfRuns {
 public:
  explicit NeedsOfRuns(int threads) : threads_(threads) {}

  /// Throws Error where the run cannot be planned here.
  RunNeeds of(const RunConfig& config) {
    RunConfig alike = config;
    alike.name.clear();
    alike.seed = RunConfig{}.seed;
    const std::string key = to_toml(alike);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    std::unique_ptr<Backend>& backend = backends_[config.backend];
    if (backend == nullptr) backend = make_backend(config.backend, threads_);
    const RunNeeds needs = plan_needs(config, *backend, [&](const std::string& what) {
      phase_.begin(fmt::format("run {}: {}", config.name, what));
    });
    phase_.begin("");
    return known_[key] = needs;
  }

 private:
  int threads_;
  std::map<std::string, RunNeeds> known_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  PhaseLine phase_;
};

/// Memory and time of every run that is not complete in `directory`, which may be empty for none.
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
  std::size_t unknown = 0;
  for (const RunConfig* run : runs) {
    try {
      const RunNeeds needs = needs_of_runs.of(*run);
      seconds += needs.seconds;
      fmt::print("plan: {}: memory {:.1f} MiB, time about {:.3g} s\n", run->name,
                 static_cast<double>(needs.bytes) / 1048576.0, needs.seconds);
    } catch (const Error& error) {
      ++unknown;
      fmt::print("plan: {}: unknown: {}\n", run->name, error.what());
    }
  }
  if (unknown == runs.size()) return;
  fmt::print("plan: time of all these about {:.3g} s, {} at once, without evaluations{}\n",
             seconds / jobs, jobs,
             unknown == 0 ? "" : fmt::format(" and without the {} unknown", unknown));
}

}  // namespace

int ablate(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("ablate", ablate_options(), arguments);
  if (values.count("help") != 0) return 0;
  if (values.count("study") == 0) throw Error("ablate: --study FILE is required");
  if (values.count("list") != 0) {
    refuse_given(values, "ablate --list", {"index", "launcher"}, "is for running the arms");
  }
  const int threads = threads_of(values, "ablate");
  const int jobs = checked_threads(values["jobs"].as<int>(), "ablate: --jobs");
  checked_threads(std::int64_t{threads} * jobs, "ablate: --jobs times --threads");
  if (values["launcher"].as<std::string>() != "local") {
    throw Error(
        fmt::format("ablate: launcher '{}' is not available; accepted is local, and --index "
                    "runs one arm under any scheduler",
                    values["launcher"].as<std::string>()));
  }
  std::vector<Assignment> assignments;
  if (values.count("set") != 0) {
    for (const std::string& text : values["set"].as<std::vector<std::string>>()) {
      assignments.push_back(parse_assignment(text));
    }
  }
  const StudyConfig study = load_study_config(values["study"].as<std::string>(), assignments,
                                              chosen_scale(values, "ablate"));
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (values.count("list") != 0) {
    const StudyPlan plan = plan_study(study);
    print_plan(plan);
    const int at_once = std::max(1, jobs);
    print_needs(plan, values.count("out") != 0 ? values["out"].as<std::string>() : "", at_once,
                threads > 0 ? threads : std::max(1, processors / at_once));
    return 0;
  }
  StudyOptions options;
  options.directory =
      values.count("out") != 0 ? values["out"].as<std::string>() : "runs/" + study.name;
  output_folder(options.directory.string(), "ablate: --out");
  options.jobs = jobs > 0 ? jobs : processors;
  options.threads = threads;
  if (values.count("index") != 0) options.index = values["index"].as<std::int64_t>();
  options.stop = &stop_requested();
  options.say = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  options.make_backend = [&](const std::string& name) {
    return make_backend(name, options.threads);
  };
  const StudyResult result = run_study(study, options);
  fmt::print("{} complete, {} failed, {} interrupted\n", result.complete, result.failed,
             result.interrupted);
  if (result.interrupted > 0 || stop_requested().load()) return 4;
  return result.failed > 0 ? 1 : 0;
}

}  // namespace fp8lab::cli
