#include "src/cli/validate_steps.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/hash.hpp"
#include "src/validate/steps.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

/// What was compared, for --json.
class StepReport {
 public:
  bool good() const { return good_; }

  /// Prints the outcome of one comparison.
  void add(const std::string& name, const StepTrace& expected, const StepTrace& actual);
  /// Prints that a record is of another configuration.
  void add_other_configuration(const std::string& file, const GoldenSteps& golden,
                               const RunConfig& config);
  void write(const Values& values, const Backend& tested) const;

 private:
  void add_row(const std::string& name, std::size_t steps, std::int64_t differs_at,
               const std::string& what);

  bool good_ = true;
  ordered_json rows_ = ordered_json::array();
};

void StepReport::add_row(const std::string& name, std::size_t steps, std::int64_t differs_at,
                         const std::string& what) {
  ordered_json row = {{"name", name}, {"steps", steps}, {"good", what.empty()}};
  if (!what.empty()) {
    good_ = false;
    row["difference"] = what;
    if (differs_at > 0) row["first_step"] = differs_at;
  }
  rows_.push_back(std::move(row));
}

void StepReport::add(const std::string& name, const StepTrace& expected, const StepTrace& actual) {
  const StepDifference difference = compare_traces(expected, actual);
  add_row(name, actual.weights.size(), difference.step + 1, difference.what);
  if (difference.step < 0) {
    fmt::print(
        "{}: {} steps, same loss, gradient norm and weights at every one; final weights {}\n", name,
        actual.weights.size(), actual.weights.empty() ? "none" : hex16(actual.weights.back()));
    return;
  }
  fmt::print("{}: {} differs first at step {} of {}\n", name, difference.what, difference.step + 1,
             expected.weights.size());
}

void StepReport::add_other_configuration(const std::string& file, const GoldenSteps& golden,
                                         const RunConfig& config) {
  fmt::print("{}: recorded with configuration {}, now it is {}\n", file, golden.config_hash,
             config.hash);
  add_row(file, 0, 0, "configuration");
}

void StepReport::write(const Values& values, const Backend& tested) const {
  if (values.count("json") == 0) return;
  const ordered_json json = {
      {"what", "step"}, {"device", tested.device()}, {"good", good_}, {"runs", rows_}};
  write_file_atomically(values["json"].as<std::string>(), json.dump(2) + "\n");
}

RunConfig step_config(const std::string& preset, const std::string& recipe,
                      const std::vector<std::string>& settings) {
  std::vector<Assignment> assignments;
  for (const std::string& text : settings) assignments.push_back(parse_assignment(text));
  assignments.push_back({"recipe", recipe});
  return load_preset(preset, assignments);
}

int replay_steps(const Values& values, Backend& tested) {
  StepReport report;
  for (const std::string& file : values["directory"].as<std::vector<std::string>>()) {
    const GoldenSteps golden = read_golden_steps(file);
    const RunConfig config = step_config(golden.preset, golden.recipe, golden.settings);
    if (config.hash != golden.config_hash) {
      report.add_other_configuration(file, golden, config);
      continue;
    }
    const StepTrace trace = trace_steps(config, tested, {});
    report.add(fmt::format("{} ({})", file, golden.device), golden.trace, trace);
  }
  report.write(values, tested);
  return report.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

/// One file for each recipe, called by its name.
void record_steps(const Values& values, const GoldenSteps& golden) {
  const std::filesystem::path folder = values["record"].as<std::string>();
  make_directories(folder);
  const std::string name = std::filesystem::path(golden.recipe).stem().string() + ".json";
  write_file_atomically(folder / name, to_json(golden));
}

/// Runs the recipes on the backend under test and on the emulator.
int compare_steps(const Values& values, Backend& tested) {
  const std::unique_ptr<Backend> expected = make_backend("cpu", values["threads"].as<int>());
  const std::string preset = values["preset"].as<std::string>();
  std::vector<std::string> recipes{"bf16"}, settings;
  if (values.count("recipe") != 0) recipes = values["recipe"].as<std::vector<std::string>>();
  if (values.count("set") != 0) settings = values["set"].as<std::vector<std::string>>();
  if (values.count("record") != 0) {
    output_folder(values["record"].as<std::string>(), "validate step: --record");
  }
  ProgressLine progress;
  StepReport report;
  for (const std::string& recipe : recipes) {
    const RunConfig config = step_config(preset, recipe, settings);
    const auto trace = [&](Backend& backend) {
      return trace_steps(config, backend, [&](std::int64_t step, std::int64_t total) {
        progress.update(fmt::format("{} {} {}/{}", recipe, backend.name(), step, total));
      });
    };
    const StepTrace actual = trace(tested);
    const StepTrace wanted = trace(*expected);
    progress.clear();
    report.add(recipe, wanted, actual);
    if (values.count("record") != 0)
      record_steps(values, {preset, recipe, settings, tested.device(), config.hash, actual});
  }
  fmt::print("{} against {}: {}\n", tested.device(), expected->device(),
             report.good() ? "the same bits" : "different bits");
  report.write(values, tested);
  return report.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace

int validate_steps(const Values& values) {
  const bool replay = values.count("directory") != 0;
  if (replay) {
    refuse_given(values, "validate step", {"preset", "recipe", "set", "record"},
                 "is for steps computed anew; records say theirs");
  }
  const std::unique_ptr<Backend> tested =
      make_backend(values["backend"].as<std::string>(), values["threads"].as<int>(), "own",
                   values.count("no-graphs") == 0);
  return replay ? replay_steps(values, *tested) : compare_steps(values, *tested);
}

}  // namespace fp8lab::cli
