#include "src/cli/options/run_choice.hpp"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/option_assignments.hpp"

namespace fp8lab::cli {

void add_run_choice(Options& options) {
  options.add("config", value<std::string>(), "run configuration (TOML)");
  options.add("preset", value<std::string>(), "built-in configuration by name");
  options.add("recipe", value<std::string>(), "recipe of the run, by name or file");
  options.add_set("KEY=VALUE, repeatable");
}

void add_scale(Options& options) {
  options.add("scale", value<double>(),
              "0.1: a tenth of the steps of every stage and of the intervals that count steps");
}

std::optional<double> chosen_scale(const Values& values, const std::string& command) {
  if (values.count("scale") == 0) return std::nullopt;
  const double scale = values["scale"].as<double>();
  check_scale(scale, command + ": --scale");
  return scale;
}

RunConfig chosen_run(const Values& values, const std::string& command) {
  if (values.count("config") + values.count("preset") != 1) {
    throw InputError({.where = command, .reason = "give either --config FILE or --preset NAME"});
  }
  OptionAssignments assignments(values, command);
  assignments.add_set();
  assignments.add("recipe", "recipe");
  assignments.add("backend", "backend");
  assignments.add("init-from", "init_from");
  const double scale = chosen_scale(values, command).value_or(1.0);
  assignments.explain("scale", "scale", fmt::format("{}", scale));
  return assignments.reading([&] {
    return values.count("config") != 0
               ? load_run_config(values["config"].as<std::string>(), assignments.all(), scale)
               : load_preset(values["preset"].as<std::string>(), assignments.all(), scale);
  });
}

}  // namespace fp8lab::cli
