#include "src/study/study.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <thread>

#include "emulation/api/error.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/run_log.hpp"
#include "src/study/comparison.hpp"
#include "src/study/process.hpp"

namespace fp8lab {
namespace {

constexpr const char* kShared = "shared";

RunConfig configure(const StudyConfig& study, const std::vector<Assignment>& assignments) {
  std::vector<Assignment> all = study.assignments;
  all.insert(all.end(), assignments.begin(), assignments.end());
  return load_run_config(study.base, all);
}

bool is_shared(const StudyConfig& study, const StageConfig& stage) {
  return std::find(study.shared_stages.begin(), study.shared_stages.end(), stage.name) !=
         study.shared_stages.end();
}

void keep_stages(const StudyConfig& study, bool shared, RunConfig& config) {
  auto& stages = config.stages;
  stages.erase(std::remove_if(stages.begin(), stages.end(),
                              [&](const StageConfig& stage) {
                                return is_shared(study, stage) != shared;
                              }),
               stages.end());
  if (stages.empty()) {
    throw Error(fmt::format("study '{}': shared_stages leaves {} without a stage", study.name,
                            shared ? "the shared run" : "the arms"));
  }
}

/// Without the axis that names the precision: arms that agree in this are compared.
std::string pairing_key(const RunConfig& config) {
  RunConfig neutral = config;
  neutral.recipe.clear();
  neutral.name.clear();
  for (StageConfig& stage : neutral.stages) stage.recipe.clear();
  return to_toml(neutral);
}

bool is_complete(const std::filesystem::path& directory) {
  const auto file = directory / "run.h5";
  return std::filesystem::exists(file) && read_run_status(file).complete;
}

ChildTask make_task(const std::filesystem::path& directory, const std::string& name,
                    const RunConfig& config, const StudyOptions& options,
                    const std::vector<std::string>& extra) {
  make_directories(directory);
  write_file_atomically(directory / "config.toml", to_toml(config));
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(processors) / options.jobs);
  std::vector<std::string> arguments = {"train",     "--config",  (directory / "config.toml").string(),
                                        "--out",     directory.string(),
                                        "--resume",  "--threads", std::to_string(threads),
                                        "--arm",     name};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  return {name, arguments, directory / "log.txt"};
}

void count(const std::vector<ChildResult>& results, StudyResult& total) {
  for (const ChildResult& result : results) {
    if (result.exit_code == 0) ++total.complete;
    else if (result.exit_code == 4) ++total.interrupted;
    else ++total.failed;
  }
}

/// Returns false when the shared run did not end well.
bool run_shared(const StudyConfig& study, const StudyOptions& options, StudyResult& result) {
  const auto directory = options.directory / kShared;
  if (is_complete(directory)) return true;
  RunConfig config = configure(study, study.shared_assignments);
  config.name = kShared;
  keep_stages(study, true, config);
  StudyOptions alone = options;
  alone.jobs = 1;
  const ChildTask task = make_task(directory, kShared, config, alone, {});
  options.say(fmt::format("shared: {} starts", task.name));
  const auto results = run_children({task}, 1, *options.stop, [&](const ChildResult& child) {
    options.say(fmt::format("shared: exit {} after {:.0f} s", child.exit_code, child.seconds));
  });
  if (results.size() == 1 && results[0].exit_code == 0) return true;
  count(results, result);
  return false;
}

}  // namespace

std::vector<PlannedArm> plan_study(const StudyConfig& study) {
  std::vector<PlannedArm> arms;
  for (const StudyArm& arm : study.arms) {
    PlannedArm planned{arm.name, configure(study, arm.assignments), "", arm.assignments};
    planned.config.name = arm.name;
    if (!study.shared_stages.empty()) keep_stages(study, false, planned.config);
    arms.push_back(std::move(planned));
  }
  std::vector<std::string> keys;
  for (const PlannedArm& arm : arms) keys.push_back(pairing_key(arm.config));
  for (std::size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].config.recipe == study.baseline) continue;
    for (std::size_t j = 0; j < arms.size(); ++j) {
      if (arms[j].config.recipe == study.baseline && keys[j] == keys[i]) {
        arms[i].baseline_arm = arms[j].name;
      }
    }
  }
  return arms;
}

StudyResult run_study(const StudyConfig& study, const StudyOptions& options) {
  const std::vector<PlannedArm> arms = plan_study(study);
  if (options.index && (*options.index < 0 ||
                        *options.index >= static_cast<std::int64_t>(arms.size()))) {
    throw Error(fmt::format("--index {}: the study has arms 0 to {}", *options.index,
                            arms.size() - 1));
  }
  make_directories(options.directory);
  StudyResult result;
  const bool shared = !study.shared_stages.empty();
  if (shared && !run_shared(study, options, result)) return result;
  std::vector<ChildTask> tasks;
  for (std::size_t i = 0; i < arms.size(); ++i) {
    if (options.index && *options.index != static_cast<std::int64_t>(i)) continue;
    const auto directory = options.directory / arms[i].name;
    if (is_complete(directory)) {
      ++result.complete;
      options.say(fmt::format("{}: complete already", arms[i].name));
      continue;
    }
    std::vector<std::string> extra;
    if (shared) {
      extra = {"--init-from",
               (options.directory / kShared / "checkpoint.safetensors").string()};
    }
    tasks.push_back(make_task(directory, arms[i].name, arms[i].config, options, extra));
  }
  std::size_t done = 0;
  const auto results =
      run_children(tasks, options.jobs, *options.stop, [&](const ChildResult& child) {
        options.say(fmt::format("{}: {} after {:.0f} s ({} of {} arms)", child.name,
                                child.exit_code == 0 ? "complete"
                                                     : fmt::format("exit {}", child.exit_code),
                                child.seconds, ++done, tasks.size()));
      });
  count(results, result);
  write_comparison(study, arms, options.directory);
  return result;
}

}  // namespace fp8lab
