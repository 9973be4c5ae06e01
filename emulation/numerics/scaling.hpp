// From the amax of a tile to its scale, for every rule of scale_rule.hpp (recipes.md section 0.3).
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/scale_rule.hpp"

FP8LAB_NUMERICS_BEGIN

/// The scale of one tile: x ~ decode * q, q = cast(scaled_value(scale, x)).
struct TileScale {
  float decode = 1.0f;      ///< what is stored and multiplied back
  float multiplier = 1.0f;  ///< applied before the cast unless `divide`
  bool divide = false;      ///< the cast value is x / decode instead of x * multiplier
};

/// The value that is cast: one FP32 operation, round to nearest even.
FP8LAB_HD constexpr float scaled_value(const TileScale& scale, float x) {
  return scale.divide ? x / scale.decode : x * scale.multiplier;
}

/// 2^exponent for -149 <= exponent <= 127, exact.
FP8LAB_HD constexpr float power_of_two(int exponent) {
  return exponent >= -126 ? bits_float(static_cast<std::uint32_t>(exponent + 127) << 23)
                          : bits_float(1u << (exponent + 149));
}

/// rule.margin limited to +-64, so that no product below leaves the FP32 range.
FP8LAB_HD constexpr int bounded_margin(const ScaleRule& rule) {
  return rule.margin < -64 ? -64 : rule.margin > 64 ? 64 : rule.margin;
}

/// The target maximum Qmax / 2^margin, exact.
FP8LAB_HD constexpr float target_maximum(const ScaleRule& rule, FormatSpec element) {
  return max_finite(element) * power_of_two(-bounded_margin(rule));
}

/// numerator / denominator for nonzero finite magnitudes, an infinite quotient replaced by the
/// largest finite FP32 value.
FP8LAB_HD constexpr float bounded_quotient(float numerator, float denominator) {
  const float quotient = numerator / denominator;
  return float_bits(quotient) == kF32Infinity ? bits_float(kF32MaxFinite) : quotient;
}

/// FP32 scale of a tile with finite nonzero amax. Where the factor applied to x would overflow it
/// becomes the largest finite value, and the decode scale its rounded reciprocal
/// (TransformerEngine); a decode scale that would be zero becomes 2^-149.
FP8LAB_HD constexpr TileScale fp32_scale(ScaleArithmetic arithmetic, float qmax, float amax) {
  if (arithmetic == ScaleArithmetic::enc_div) {
    const float encode_factor = bounded_quotient(qmax, amax);
    return {bounded_quotient(1.0f, encode_factor), encode_factor, false};
  }
  float decode_factor = bounded_quotient(amax, qmax);
  if (float_bits(decode_factor) == 0u) decode_factor = power_of_two(-149);
  const float reciprocal = bounded_quotient(1.0f, decode_factor);
  if (arithmetic == ScaleArithmetic::dec_div) return {decode_factor, reciprocal, true};
  if (float_bits(reciprocal) == kF32MaxFinite) decode_factor = 1.0f / reciprocal;
  return {decode_factor, reciprocal, false};
}

/// Decode exponent of a tile with finite nonzero amax under a power-of-two rule, not yet clamped.
/// Logarithms are compared as integers: with amax = a * 2^i, Qmax = q * 2^j and a, q 24-bit
/// significands, log2(amax/Qmax) = i - j + log2(a/q), and |log2(a/q)| < 1.
FP8LAB_HD constexpr int decode_exponent(const ScaleRule& rule, FormatSpec element, float amax) {
  const float qmax = target_maximum(rule, element);
  const NormalizedF32 a = normalize_f32(float_bits(amax));
  const NormalizedF32 q = normalize_f32(float_bits(qmax));
  const int difference = a.exponent - q.exponent;
  switch (rule.rounding) {
    case ScaleRounding::ceil: return difference + (a.significand > q.significand ? 1 : 0);
    case ScaleRounding::nearest: {
      // sqrt(2) is irrational, so there is no tie.
      const std::uint64_t a2 = std::uint64_t{a.significand} * a.significand;
      const std::uint64_t q2 = std::uint64_t{q.significand} * q.significand;
      if (a2 > 2 * q2) return difference + 1;
      return 2 * a2 > q2 ? difference : difference - 1;
    }
    case ScaleRounding::enc_floor:
      return -normalize_f32(float_bits(bounded_quotient(qmax, amax))).exponent;
    case ScaleRounding::ocp_floor:
      return a.exponent - element.max_exponent() + bounded_margin(rule);
    case ScaleRounding::rceil: {
      const float ratio = amax * (1.0f / qmax);
      return static_cast<int>(encode_e8m0(float_bits(ratio), true, Overflow::saturate)) - 127;
    }
    case ScaleRounding::even: {
      const std::uint32_t rounded = float_bits(amax) + (1u << (22 - element.mantissa_bits));
      const int field = static_cast<int>(rounded >> 23);
      return (field == 0 ? -126 : field - 127) - element.max_exponent() + bounded_margin(rule);
    }
  }
  return 0;
}

/// Decode exponent of an all-zero tile: `rceil` stores code 0; `ocp_floor` and `even` take amax as
/// the smallest normal FP32 number (microxcaling); the others use scale 1 (TransformerEngine).
FP8LAB_HD constexpr int zero_tile_exponent(const ScaleRule& rule, FormatSpec element) {
  switch (rule.rounding) {
    case ScaleRounding::rceil: return -127;
    case ScaleRounding::ocp_floor:
    case ScaleRounding::even: return -126 - element.max_exponent() + bounded_margin(rule);
    default: return 0;
  }
}

/// Scale of a tile whose largest magnitude is `amax` (recipes.md section 0.3).
///
/// amax is first raised to rule.amax_epsilon. FP32 scales follow rule.arithmetic, each operation
/// rounded to nearest even. Power-of-two scales follow rule.rounding alone: decode = 2^e with e
/// clamped to [-127, 127], and the multiplier 2^-e is its exact reciprocal, so all three
/// arithmetics give the same codes. A zero tile gets a finite scale (see zero_tile_exponent; 1 for
/// FP32). Infinite or NaN amax gives scale 1 in FP32 and pow2 (TransformerEngine); for e8m0 it
/// gives NaN, which makes the whole tile NaN, except that `rceil` stores 2^127 for infinity.
FP8LAB_HD constexpr TileScale tile_scale(const ScaleRule& rule, FormatSpec element, float amax) {
  const std::uint32_t magnitude = float_bits(amax) & 0x7FFFFFFFu;
  if (magnitude >= kF32Infinity) {
    if (rule.format != ScaleFormat::e8m0) return {};
    if (magnitude == kF32Infinity && rule.rounding == ScaleRounding::rceil) {
      return {power_of_two(127), power_of_two(-127), false};
    }
    return {bits_float(kF32NaN), bits_float(kF32NaN), false};
  }
  float bounded = bits_float(magnitude);
  if (bounded < rule.amax_epsilon) bounded = rule.amax_epsilon;
  if (rule.format == ScaleFormat::fp32) {
    if (float_bits(bounded) == 0u) return {};
    return fp32_scale(rule.arithmetic, target_maximum(rule, element), bounded);
  }
  int exponent = float_bits(bounded) == 0u ? zero_tile_exponent(rule, element)
                                           : decode_exponent(rule, element, bounded);
  exponent = exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
  return {power_of_two(exponent), power_of_two(-exponent), false};
}

FP8LAB_NUMERICS_END
