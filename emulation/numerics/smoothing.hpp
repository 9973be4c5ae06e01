// Factors that move range from one operand of a product to the other, channel by channel.
#pragma once

#include "emulation/numerics/exact_math.hpp"

FP8LAB_NUMERICS_BEGIN

/// Returns SmoothQuant's factor of one position along K, amax_a^strength / amax_b^(1 - strength)
/// (Xiao et al. 2023, equation 4). It is computed as 2^t with
/// t = (strength * log2(amax_a)) - ((1 - strength) * log2(amax_b)), each operation rounded, and t
/// bounded to [-126, 126], so that the factor is a normal number. 1 if an amax is zero, infinite
/// or NaN.
FP8LAB_HD inline float smoothing_factor(float strength, float amax_a, float amax_b) {
  const bool usable = amax_a > 0.0f && amax_b > 0.0f && float_bits(amax_a) < kF32Infinity &&
                      float_bits(amax_b) < kF32Infinity;
  if (!usable) return 1.0f;
  const float t = (strength * log2(amax_a)) - ((1.0f - strength) * log2(amax_b));
  return exp2(t < -126.0f ? -126.0f : t > 126.0f ? 126.0f : t);
}

FP8LAB_NUMERICS_END
