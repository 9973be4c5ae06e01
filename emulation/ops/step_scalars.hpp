// Scalars of the training step, in an f32 vector in backend memory.
#pragma once

#include <cstdint>

namespace fp8lab {

struct StepScalar {
  static constexpr std::int64_t kLearningRate = 0;
  static constexpr std::int64_t kInverseTokens = 1;  ///< 1 / unmasked tokens of the whole step
  static constexpr std::int64_t kLossSum = 2;        ///< sum of token losses so far, nats
  static constexpr std::int64_t kGradNormSquared = 3;
  static constexpr std::int64_t kGradNorm = 4;
  static constexpr std::int64_t kClipFactor = 5;
  static constexpr std::int64_t kBeta1Power = 6;  ///< beta1^t, updated by ops::BeginUpdate
  static constexpr std::int64_t kBeta2Power = 7;
  static constexpr std::int64_t kCount = 8;
};

}  // namespace fp8lab
