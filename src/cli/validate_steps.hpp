// fp8lab validate step: whole training steps on two backends, or against recorded ones.
#pragma once

#include "src/cli/options.hpp"

namespace fp8lab::cli {

/// Returns the exit status.
int validate_steps(const Values& values);

}  // namespace fp8lab::cli
