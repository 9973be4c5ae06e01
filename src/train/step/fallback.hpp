// Criteria by which a stage switches to its fallback recipe.
//
// | criterion     | holds where                                        | names             |
// |---------------|----------------------------------------------------|-------------------|
// | nonfinite     | loss or gradient norm is not finite                | gradient [1]      |
// | loss_spike    | loss > loss_spike * mean                           |                   |
// | gradient_norm | norm of all gradients > gradient_norm * mean       | gradient [1]      |
// | saturation    | saturation_fraction of an operand > saturation     | the largest's     |
//
// The mean is that of the steps of the stage, each new one with a weight of 1 / window; it counts
// once `window` steps are in it, and the step that is judged is not. A step without trained tokens
// or with a value that is not finite is not in it. The first criterion that holds, in this order,
// is the reason. [1] The first gradient with a norm that is not finite, or the one with the
// largest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "emulation/ops/quantize/operand_statistics.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// State of a stage with a fallback; part of a checkpoint.
struct FallbackState {
  bool fallen = false;                 ///< the fallback recipe applies from the next step on
  std::int64_t seen = 0;               ///< steps in the means
  double loss = 0, gradient_norm = 0;  ///< the means
  bool operator==(const FallbackState&) const = default;
};

/// Values of one step that the criteria test.
struct StepSigns {
  double loss = 0, gradient_norm = 0;
  std::span<const OperandStatistics> statistics;    ///< of each operand; empty: not logged
  std::function<std::string(std::size_t)> operand;  ///< name of the operand with that index
  std::function<std::string()>
      gradient;  ///< name of the parameter whose gradient is not finite or largest
};

/// Returns the reason to fall back after a step, in words; nothing if no criterion holds.
std::optional<std::string> reason_to_fall_back(const FallbackCriteria& when,
                                               const FallbackState& state, const StepSigns& step);

/// Adds the step to the running means.
void remember(const FallbackCriteria& when, const StepSigns& step, FallbackState& state);

/// "0:17:LOSS:NORM", the means as the 16 hex digits of their bits.
std::string fallback_text(const FallbackState& state);
/// Inverse of fallback_text. Nothing for other text.
std::optional<FallbackState> parse_fallback(const std::string& text);

}  // namespace fp8lab
