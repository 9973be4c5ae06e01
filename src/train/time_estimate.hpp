// How long an optimizer step takes, from operations timed one by one.
#pragma once

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Seconds of one optimizer step.
struct TimePlan {
  double gemms = 0;
  double attention = 0;
  double quantization = 0;  ///< casts, and copies with the other orientation
  double elementwise = 0;   ///< norms, residuals, SwiGLU, rotations and the loss, by bytes moved
  double optimizer = 0;     ///< gradients cleared, clipped and applied
  double total() const { return gemms + attention + quantization + elementwise + optimizer; }
};

/// Times each kind of operation on `backend` for some tenths of a second, at growing sizes until
/// one call takes 20 ms or has the size of the step's, and scales by the work of a step.
/// Statistics, evaluations, checkpoints, transforms and the first step's set-up are not in it.
/// Documents are taken to be as long as sequences: attention to shorter ones takes less.
TimePlan estimate_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       Backend& backend);

}  // namespace fp8lab
