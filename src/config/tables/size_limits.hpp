// Size limits that no machine can exceed; checked in the configuration,
// before sizes are multiplied.
#pragma once

#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

class TomlReader;

inline constexpr double kMostParameters = 0x1p44;
inline constexpr double kMostStepTokens = 0x1p32;        ///< tokens of an optimizer step
inline constexpr double kMostMicroBatchTokens = 0x1p31;  ///< tokens of one forward pass
inline constexpr double kMostActivations = 0x1p52;       ///< elements saved by one forward pass
inline constexpr double kMostEvaluatedTokens = 0x1p32;
inline constexpr double kMostAnswers = 0x1p24;          ///< answers of one evaluation
inline constexpr std::int64_t kMostProblems = 1 << 24;  ///< problems of a corpus, held in memory
/// Micro-batches, or chunks of the loss, per step for which random keys are
/// distinct (src/model/linear/linear.cpp).
inline constexpr std::int64_t kMostChunks = 4096;
inline constexpr std::int64_t kMostSteps = 0xffffffff;  ///< steps of a run: 32 bits of random keys

/// Returns the number of weights that the model declares, as a double: sums and products cannot
/// overflow.
double parameter_count(const ModelConfig& model);

/// Throws Error that names `table` if the model has more than kMostParameters.
void check_model_size(const TomlReader& table, const ModelConfig& model);

/// Throws Error that names the key of `table`, the product that it makes too large, and the bound.
void check_stage_size(const TomlReader& table, const StageConfig& stage, const ModelConfig& model);

/// Throws Error if all stages together have more than kMostSteps.
void check_steps(const TomlReader& document, const std::vector<StageConfig>& stages);

}  // namespace fp8lab
