// fp8lab validate step: whole training steps on two backends, or against recorded ones.
#pragma once

#include <boost/program_options.hpp>

namespace fp8lab::cli {

/// Returns the exit status.
int validate_steps(const boost::program_options::variables_map& values);

}  // namespace fp8lab::cli
