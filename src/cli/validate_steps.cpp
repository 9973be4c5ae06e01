#include "src/cli/validate_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/located.hpp"
#include "src/cli/options/option_assignments.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hash.hpp"
#include "src/replay/locate.hpp"
#include "src/replay/step_difference.hpp"
#include "src/validate/steps.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

/// The comparisons, collected for --json.
class StepReport {
 public:
  bool good() const { return good_; }

  /// Prints the outcome of one comparison of `steps` steps.
  void add(const std::string& name, std::size_t steps, const std::string& weights,
           const StepDifference& difference);
  /// Prints the operation that causes a difference.
  void add_located(const LocatedDifference& located, const std::string& expected,
                   const std::string& tested);
  /// Prints that a record has another configuration.
  void add_other_configuration(const std::string& file, const GoldenSteps& golden,
                               const RunConfig& config);
  void write(const Values& values, const std::string& device) const;

 private:
  void add_row(const std::string& name, std::size_t steps, const StepDifference& difference);

  bool good_ = true;
  ordered_json rows_ = ordered_json::array();
};

void StepReport::add_row(const std::string& name, std::size_t steps,
                         const StepDifference& difference) {
  const bool good = difference.what.empty();
  ordered_json row = {{"name", name}, {"steps", steps}, {"good", good}};
  if (!good) {
    good_ = false;
    row["difference"] = difference.what;
    if (difference.step > 0) row["first_step"] = difference.step;
  }
  rows_.push_back(std::move(row));
}

void StepReport::add(const std::string& name, std::size_t steps, const std::string& weights,
                     const StepDifference& difference) {
  add_row(name, steps, difference);
  if (difference.step < 0) {
    fmt::print(
        "{}: {} steps, same loss, gradient norm and weights at every one; final weights {}\n", name,
        steps, weights);
    return;
  }
  fmt::print("{}: {} differs first at step {} of {}\n", name, difference.what, difference.step,
             steps);
}

void StepReport::add_located(const LocatedDifference& located, const std::string& expected,
                             const std::string& tested) {
  rows_.back()["located"] = cli::to_json(located);
  fmt::print("{}", cli::describe(located, expected, tested));
}

void StepReport::add_other_configuration(const std::string& file, const GoldenSteps& golden,
                                         const RunConfig& config) {
  fmt::print("{}: recorded with configuration {}, now it is {}\n", file, golden.config_hash,
             config.hash);
  add_row(file, 0, {-1, "configuration"});
}

void StepReport::write(const Values& values, const std::string& device) const {
  if (values.count("json") == 0) return;
  const ordered_json json = {
      {"what", "step"}, {"device", device}, {"good", good_}, {"runs", rows_}};
  write_json(values["json"].as<std::string>(), json);
}

RunConfig step_config(const std::string& preset, const std::string& recipe,
                      const std::vector<std::string>& settings) {
  std::vector<Assignment> assignments;
  for (const std::string& text : settings) assignments.push_back(parse_assignment(text));
  assignments.push_back({"recipe", recipe});
  return load_preset(preset, assignments);
}

/// Like step_config for what was typed; errors name the options.
RunConfig typed_config(const Values& values, const std::string& preset, const std::string& recipe,
                       const std::vector<std::string>& settings) {
  OptionAssignments typed(values, "validate step");
  typed.add_set();
  typed.explain("recipe", "recipe", recipe);
  return typed.reading([&] { return step_config(preset, recipe, settings); });
}

using MakeBackend = std::function<std::unique_ptr<Backend>()>;

std::vector<StepRecord> records_of(const std::vector<StepTaken>& steps) {
  std::vector<StepRecord> records;
  for (const StepTaken& step : steps) records.push_back(step.record);
  return records;
}

std::string final_weights(const std::vector<StepRecord>& steps) {
  return steps.empty() ? "none" : hex16(steps.back().weight_hash);
}

ReplaySource source_of(const RunConfig& config, const std::string& name, const MakeBackend& make) {
  return {name, config, {}, {}, make};
}

int replay_steps(const Values& values, const MakeBackend& make) {
  const std::string device = make()->device();
  const std::size_t at_most =
      values.count("steps") == 0 ? SIZE_MAX : positive_count(values, "validate step", "steps");
  StepReport report;
  for (const std::string& file : values["directory"].as<std::vector<std::string>>()) {
    GoldenSteps golden = read_golden_steps(file);
    const RunConfig config = step_config(golden.preset, golden.recipe, golden.settings);
    if (config.hash != golden.config_hash) {
      report.add_other_configuration(file, golden, config);
      continue;
    }
    const std::vector<StepRecord> steps =
        records_of(replay_all(source_of(config, file, make), {}, at_most));
    golden.steps.resize(std::min(golden.steps.size(), at_most));
    StepDifference difference = first_difference(golden.steps, steps);
    if (difference.step < 0 && steps.size() != golden.steps.size()) {
      difference = {static_cast<std::int64_t>(std::min(steps.size(), golden.steps.size())) + 1,
                    "number of steps"};
    }
    report.add(fmt::format("{} ({})", file, golden.device), steps.size(), final_weights(steps),
               difference);
  }
  report.write(values, device);
  return report.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

/// Writes one file for each recipe, with the recipe's name.
void record_steps(const Values& values, const GoldenSteps& golden) {
  const std::filesystem::path folder = values["record"].as<std::string>();
  make_directories(folder);
  const std::string name = std::filesystem::path(golden.recipe).stem().string() + ".json";
  write_file_atomically(folder / name, to_json(golden));
}

/// Runs the recipes on the backend under test and on the emulator.
int compare_steps(const Values& values, const MakeBackend& make) {
  const int threads = values["threads"].as<int>();
  const MakeBackend make_expected = [threads] { return make_backend("cpu", threads); };
  const std::string device = make()->device(), expected_device = make_expected()->device();
  const std::string preset = values["preset"].as<std::string>();
  std::vector<std::string> recipes = words_of(values, "recipe");
  if (recipes.empty()) recipes = {"bf16"};
  const std::vector<std::string> settings = words_of(values, "set");
  if (values.count("record") != 0) {
    output_folder(values["record"].as<std::string>(), "validate step: --record");
  }
  ProgressLine progress;
  StepReport report;
  for (const std::string& recipe : recipes) {
    const RunConfig config = typed_config(values, preset, recipe, settings);
    const ReplaySource tested = source_of(config, values["backend"].as<std::string>(), make);
    const ReplaySource expected = source_of(config, "cpu", make_expected);
    const auto execute = [&](const ReplaySource& source) {
      return replay_all(source, [&](std::int64_t step, std::int64_t total) {
        progress.update(fmt::format("{} {} {}/{}", recipe, source.name, step, total));
      });
    };
    const std::vector<StepTaken> actual = execute(tested);
    const StepDifference difference = first_difference(execute(expected), actual);
    progress.clear();
    const std::vector<StepRecord> records = records_of(actual);
    report.add(recipe, records.size(), final_weights(records), difference);
    if (difference.step > 0) {
      report.add_located(locate_difference(expected, tested, {}, difference.step).difference, "cpu",
                         "tested");
    }
    if (values.count("record") != 0) {
      record_steps(values, {preset, recipe, settings, device, config.hash, records});
    }
  }
  fmt::print("{} against {}: {}\n", device, expected_device,
             report.good() ? "the same bits" : "different bits");
  report.write(values, device);
  return report.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace

int validate_steps(const Values& values) {
  const bool replay = values.count("directory") != 0;
  if (replay) {
    refuse_given(values, "validate step", {"preset", "recipe", "set", "record"},
                 "is for steps computed anew; records say theirs");
  }
  const std::string backend = values["backend"].as<std::string>();
  const int threads = values["threads"].as<int>();
  const bool graphs = values.count("no-graphs") == 0;
  const MakeBackend make = [=] { return make_backend(backend, threads, "own", graphs); };
  if (replay) return replay_steps(values, make);
  refuse_given(values, "validate step", {"steps"},
               "is for recordings; use --set 'stages.*.steps=N'");
  return compare_steps(values, make);
}

}  // namespace fp8lab::cli
