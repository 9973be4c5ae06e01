// Weights of keys in attention: powers of two with fewer operations than exp2 of exact_math.hpp.
#pragma once

#include <cstdint>

#include "emulation/numerics/exact_math.hpp"

FP8LAB_NUMERICS_BEGIN

/// 2^f for |f| <= 1/2, exactly 1 for 0: near-minimax polynomial, relative error 2^-18.4. The weight
/// is rounded to BF16 for its products, which is an error of up to 2^-9.
FP8LAB_HD_INLINE float weight_of_fraction(float f) {
  float p = 0x1.3A02D0p-7f;
  p = fused_multiply_add(p, f, 0x1.C9FC48p-5f);
  p = fused_multiply_add(p, f, 0x1.EC0378p-3f);
  p = fused_multiply_add(p, f, 0x1.62E12Cp-1f);
  return fused_multiply_add(p, f, 1.0f);
}

/// Distance of the product of a query and a key, times `scale`, below the reference of its row. The
/// scale is negated and not the product, because x86, on which kernels are simulated, keeps the
/// sign of a NaN, and kernels find a NaN among distances by a maximum of signed integers.
FP8LAB_HD_INLINE float score_distance(float product, float scale, float reference) {
  return fused_multiply_add(product, -scale, reference);
}

/// Below this, neighbouring numbers are at most 1/4 apart. So a reference, which is a rounded
/// product, is within 1/8 of the largest product times scale, and no score_distance from it is
/// below -1/2.
inline constexpr float kNearReference = 0x1p22f;

/// attention_weight with fewer operations for -1/2 <= d <= kNormalWeight. The result is normal, so
/// the integer part of d can be subtracted from the exponent. For other d the result is arbitrary.
/// With to_integer = kF32ToInteger - n for an even n from 0 to 64 it is the weight times 2^n.
inline constexpr float kNormalWeight = 125.0f;
FP8LAB_HD_INLINE float normal_attention_weight(float d, float to_integer = kF32ToInteger) {
  const float shifted = d + to_integer;
  const float p = weight_of_fraction((shifted - to_integer) - d);
  return bits_float(float_bits(p) - (float_bits(shifted) << 23));  // kF32ToInteger's bits cancel
}

/// 2^-d: exact for integers, relative error 2^-18 if the result is normal. A d below -1/2, which
/// only rounding of scores beyond kNearReference produces, counts as -1/2; d >= 150 gives +0, NaN
/// the canonical one.
FP8LAB_HD inline float attention_weight(float d) {
  const std::uint32_t is_nan = mask_of((float_bits(d) & 0x7FFFFFFFu) > kF32Infinity);
  const float below = d < 160.0f ? d : 160.0f;
  const float bounded = below > -0.5f ? below : -0.5f;
  const float shifted = bounded + kF32ToInteger;
  const float p = weight_of_fraction((shifted - kF32ToInteger) - bounded);  // exact, |f| <= 1/2
  // Two factors, so that both are normal; only the last product can round.
  const std::int32_t n = static_cast<std::int32_t>(float_bits(kF32ToInteger) - float_bits(shifted));
  const std::int32_t half = n >> 1;
  const float scale_a = bits_float(static_cast<std::uint32_t>(half + 127) << 23);
  const float scale_b = bits_float(static_cast<std::uint32_t>(n - half + 127) << 23);
  const float result = (p * scale_a) * scale_b;
  return bits_float((float_bits(result) & ~is_nan) | (is_nan & kF32NaN));
}

/// The same for operands that are not rounded, by exp2: error below 1 ulp.
FP8LAB_HD inline float wide_attention_weight(float d) { return exp2(-(d < -0.5f ? -0.5f : d)); }

FP8LAB_NUMERICS_END
