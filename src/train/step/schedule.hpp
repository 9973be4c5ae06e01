// Learning rate over one stage.
#pragma once

#include <cstdint>
#include <string>

#include "src/config/config.hpp"

namespace fp8lab {

/// Returns the learning rate of step `step` (from 1) of a stage of `steps` steps. Linear warm-up to
/// `peak`; then constant: peak; linear and cosine: down to `final` at the last step; wsd: peak,
/// then down to `final` over the last `decay_steps` (Hu et al. 2024, MiniCPM, section 4) along half
/// a cosine, a line, or 1 - sqrt of the completed share of the decay (Hägele et al. 2024).
double learning_rate(const LearningRateSchedule& schedule, std::int64_t step, std::int64_t steps);

/// Returns the schedule of a stage of `steps` steps in words: "warm-up over 10 steps, constant
/// 0.001, cosine decay to 0.0001 over the last 20". Rates are those of the optimizer.
std::string describe(const LearningRateSchedule& schedule, std::int64_t steps);

}  // namespace fp8lab
