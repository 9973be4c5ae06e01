// Sizes beyond which no machine goes: refused where they are written, before they are multiplied.
#pragma once

#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

class TomlReader;

inline constexpr double kMostParameters = 0x1p44;
inline constexpr double kMostStepTokens = 0x1p32;        ///< of an optimizer step
inline constexpr double kMostMicroBatchTokens = 0x1p31;  ///< of one forward pass
inline constexpr double kMostActivations = 0x1p52;       ///< elements saved by one forward pass
inline constexpr double kMostEvaluatedTokens = 0x1p32;
inline constexpr double kMostAnswers = 0x1p24;          ///< of one evaluation
inline constexpr std::int64_t kMostProblems = 1 << 24;  ///< of a generated corpus, held in memory
/// Micro-batches, or chunks of the loss, of a step that random keys tell apart
/// (src/model/linear.cpp).
inline constexpr std::int64_t kMostChunks = 4096;
inline constexpr std::int64_t kMostSteps = 0xffffffff;  ///< of a run: random draws number them so

/// Weights of a model, without those of norms and biases; sums and products cannot overflow.
double approximate_parameters(const ModelConfig& model);

/// Throws Error naming `table` when the model has more than kMostParameters.
void check_model_size(const TomlReader& table, const ModelConfig& model);

/// Throws Error naming the key of `table`, the product it makes too large, and the bound.
void check_stage_size(const TomlReader& table, const StageConfig& stage, const ModelConfig& model);

/// Throws Error when all stages together have more than kMostSteps.
void check_steps(const TomlReader& document, const std::vector<StageConfig>& stages);

}  // namespace fp8lab
