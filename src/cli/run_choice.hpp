// The options with which a command names a run: a configuration or a preset, and changes to it.
#pragma once

#include <boost/program_options.hpp>
#include <string>

#include "src/config/config.hpp"

namespace fp8lab::cli {

/// --config, --preset, --recipe and --set. (--backend is the command's own.)
void add_run_choice(boost::program_options::options_description& options);

/// The run that they name. Throws Error unless exactly one of --config and --preset is given.
RunConfig chosen_run(const boost::program_options::variables_map& values,
                     const std::string& command);

}  // namespace fp8lab::cli
