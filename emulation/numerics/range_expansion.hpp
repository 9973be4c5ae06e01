// Dynamic-range expansion (COAT, Xi et al. 2024): raises a group of values to the power that
// spreads its range over that of E4M3.
#pragma once

#include "emulation/numerics/exact_math.hpp"

FP8LAB_NUMERICS_BEGIN

/// Parameters to decode a group: x = sign(y) |y|^(1/exponent) * center, y = code * scale.
struct ExpandedGroup {
  float scale = 1.0f;
  float exponent = 1.0f;  ///< k, a multiple of 1/16
  float center = 1.0f;    ///< c
};

/// Returns the group of values with the largest magnitude `amax` and the smallest nonzero one
/// `amin`. With max = amax + 1e-30 and min = amin + 1e-30:
///   k = floor((16 * log2(448^2 / 2)) / log2(max / min)) / 16 bounded to [1/16, 16],
///   c = sqrt(max) * sqrt(min), scale = 2^(k * log2(max / c)) / 448,
/// each operation rounded. A group of zeros, or with an infinity or NaN, has k = c = scale = 1.
FP8LAB_HD inline ExpandedGroup expanded_group(float amax, float amin) {
  constexpr float kOctaves = 0x1.09D5DAp+4f;  // log2(448^2 / 2)
  if (!(amax > 0.0f) || float_bits(amax) >= kF32Infinity) return {};
  const float max = amax + 1e-30f, min = amin + 1e-30f;
  const float steps = (16.0f * kOctaves) / log2(max / min);
  ExpandedGroup group;
  // Written so that infinity, which max = min gives, is bounded like any large quotient.
  group.exponent = steps >= 256.0f ? 16.0f
                   : steps < 1.0f  ? 0.0625f
                                   : static_cast<float>(static_cast<int>(steps)) * 0.0625f;
  group.center = __builtin_sqrtf(max) * __builtin_sqrtf(min);
  group.scale = exp2(group.exponent * log2(max / group.center)) / 448.0f;
  return group;
}

/// Returns y / scale with y = sign(x) * 2^(k * log2(|x| / c)), the value that is cast to E4M3.
/// Zeros keep their sign.
FP8LAB_HD inline float expand(const ExpandedGroup& group, float x) {
  const std::uint32_t sign = float_bits(x) & 0x80000000u;
  const float magnitude = bits_float(float_bits(x) & 0x7FFFFFFFu);
  const float y = exp2(group.exponent * log2(magnitude / group.center));
  return bits_float(float_bits(y / group.scale) | sign);
}

/// Returns sign(y) * 2^(log2(|y|) / k) * c with y = `decoded` * scale.
FP8LAB_HD inline float contract(const ExpandedGroup& group, float decoded) {
  const float y = decoded * group.scale;
  const std::uint32_t sign = float_bits(y) & 0x80000000u;
  const float magnitude = bits_float(float_bits(y) & 0x7FFFFFFFu);
  const float x = exp2(log2(magnitude) / group.exponent) * group.center;
  return bits_float(float_bits(x) | sign);
}

FP8LAB_NUMERICS_END
