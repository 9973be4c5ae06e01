#include "src/cli/run_choice.hpp"

#include <vector>

#include "emulation/base/error.hpp"
#include "src/cli/command.hpp"

namespace fp8lab::cli {

void add_run_choice(Options& options) {
  options.add("config", value<std::string>(), "run configuration (TOML)");
  options.add("preset", value<std::string>(), "built-in configuration by name");
  options.add("recipe", value<std::string>(), "recipe of the run, by name or file");
  options.add("set", value<std::vector<std::string>>(), "KEY=VALUE, repeatable");
}

RunConfig chosen_run(const Values& values, const std::string& command) {
  if (values.count("config") + values.count("preset") != 1) {
    throw Error(command + ": give either --config FILE or --preset NAME");
  }
  std::vector<Assignment> assignments;
  if (values.count("set") != 0) {
    for (const std::string& text : values["set"].as<std::vector<std::string>>()) {
      assignments.push_back(parse_assignment(text));
    }
  }
  for (const char* key : {"recipe", "backend"}) {
    if (given(values, key)) assignments.push_back({key, values[key].as<std::string>()});
  }
  return values.count("config") != 0
             ? load_run_config(values["config"].as<std::string>(), assignments)
             : load_preset(values["preset"].as<std::string>(), assignments);
}

}  // namespace fp8lab::cli
