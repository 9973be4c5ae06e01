// Learning rate over one stage.
#pragma once

#include <cstdint>

#include "src/config/config.hpp"

namespace fp8lab {

/// Returns the learning rate of step `step` (from 1) of a stage of `steps` steps. Linear warm-up to
/// `peak`; then constant: peak; linear and cosine: down to `final` at the last step; wsd: peak,
/// then down to `final` over the last `decay_steps` (Hu et al. 2024, MiniCPM, section 4) along half
/// a cosine, a line, or 1 - sqrt of the completed share of the decay (Hägele et al. 2024).
double learning_rate(const LearningRateSchedule& schedule, std::int64_t step, std::int64_t steps);

}  // namespace fp8lab
