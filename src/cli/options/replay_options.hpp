// The options of commands that repeat runs.
#pragma once

#include <string>

#include "src/cli/options/options.hpp"
#include "src/replay/recorded_run.hpp"

namespace fp8lab::cli {

/// Adds --init-from, --look-in, --threads, --no-graphs and --json.
void add_replay_options(Options& options);

/// Returns the run on the backend that `option` names, else on that of its record. Checks the
/// memory before anything is executed.
ReplaySource chosen_source(const RecordedRun& run, const Values& values, const std::string& option,
                           const std::string& command);

}  // namespace fp8lab::cli
