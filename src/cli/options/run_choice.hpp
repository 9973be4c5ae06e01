// Options that select a run: a configuration or a preset, and changes to it.
#pragma once

#include <optional>
#include <string>

#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// Adds --config, --preset, --recipe and --set. (--backend belongs to the command.)
void add_run_choice(Options& options);

/// Adds --scale, for commands that train.
void add_scale(Options& options);

/// Returns the value of --scale, if given.
std::optional<double> chosen_scale(const Values& values, const std::string& command);

/// Returns the selected run, with --scale and --init-from applied if the command has them. Throws
/// Error unless exactly one of --config and --preset is given.
RunConfig chosen_run(const Values& values, const std::string& command);

}  // namespace fp8lab::cli
