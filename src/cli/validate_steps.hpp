// fp8lab validate step: compares whole training steps between two backends, or with recorded ones.
#pragma once

#include "src/cli/options/options.hpp"

namespace fp8lab::cli {

/// Returns the exit status.
int validate_steps(const Values& values);

}  // namespace fp8lab::cli
