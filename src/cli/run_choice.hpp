// The options with which a command names a run: a configuration or a preset, and changes to it.
#pragma once

#include <optional>
#include <string>

#include "src/cli/options.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// --config, --preset, --recipe and --set. (--backend is the command's own.)
void add_run_choice(Options& options);

/// --scale, of commands that train.
void add_scale(Options& options);

/// Its value, if it is given.
std::optional<double> chosen_scale(const Values& values, const std::string& command);

/// The run that they name, at its --scale and from its --init-from where the command has those.
/// Throws Error unless exactly one of --config and --preset is given.
RunConfig chosen_run(const Values& values, const std::string& command);

}  // namespace fp8lab::cli
