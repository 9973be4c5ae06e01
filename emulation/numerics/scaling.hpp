// Computes the scale of a tile from its amax, for every rule of scale_rule.hpp
// (specification.md, "Scales").
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/scale_rule.hpp"

FP8LAB_NUMERICS_BEGIN

/// The scale of one tile: x ~ decode * q, q = cast(scaled_value(scale, x)).
struct TileScale {
  float decode = 1.0f;      ///< the stored factor of dequantization
  float multiplier = 1.0f;  ///< applied before the cast unless `divide`
  bool divide = false;      ///< the cast value is x / decode instead of x * multiplier
};

/// Returns the value that is cast: one FP32 operation, round to nearest even.
FP8LAB_HD constexpr float scaled_value(const TileScale& scale, float x) {
  return scale.divide ? x / scale.decode : x * scale.multiplier;
}

/// Returns 2^exponent for -149 <= exponent <= 127, exact.
FP8LAB_HD constexpr float power_of_two(int exponent) {
  return exponent >= -126 ? bits_float(static_cast<std::uint32_t>(exponent + 127) << 23)
                          : bits_float(1u << (exponent + 149));
}

/// Returns rule.margin limited to +-64, so that no product below leaves the FP32 range.
FP8LAB_HD constexpr int bounded_margin(const ScaleRule& rule) {
  return rule.margin < -64 ? -64 : rule.margin > 64 ? 64 : rule.margin;
}

/// Returns the target maximum Qmax / 2^margin, exact.
FP8LAB_HD constexpr float target_maximum(const ScaleRule& rule, FormatSpec element) {
  return max_finite(element) * power_of_two(-bounded_margin(rule));
}

/// Returns numerator / denominator for nonzero finite magnitudes; an infinite quotient becomes the
/// largest finite FP32 value.
FP8LAB_HD constexpr float bounded_quotient(float numerator, float denominator) {
  const float quotient = numerator / denominator;
  return float_bits(quotient) == kF32Infinity ? bits_float(kF32MaxFinite) : quotient;
}

/// Returns the FP32 or BF16 maximum.
FP8LAB_HD constexpr float limit_of(EncodeLimit limit) {
  return limit == EncodeLimit::bf16 ? bits_float(0x7F7F0000u) : bits_float(kF32MaxFinite);
}

/// Returns the FP32 scale of a tile with finite nonzero amax. If the factor applied to x would
/// overflow, it becomes the largest finite value (of rule.encode_limit under enc_div), and the
/// decode scale its rounded reciprocal (TransformerEngine); a decode scale that would be zero
/// becomes 2^-149.
FP8LAB_HD constexpr TileScale fp32_scale(const ScaleRule& rule, float qmax, float amax) {
  if (rule.arithmetic == ScaleArithmetic::enc_div) {
    const float quotient = qmax / amax;
    const bool overflows = float_bits(quotient) == kF32Infinity;
    const float encode_factor = overflows ? limit_of(rule.encode_limit) : quotient;
    return {bounded_quotient(1.0f, encode_factor), encode_factor, false};
  }
  float decode_factor = bounded_quotient(amax, qmax);
  if (float_bits(decode_factor) == 0u) decode_factor = power_of_two(-149);
  const float reciprocal = bounded_quotient(1.0f, decode_factor);
  if (rule.divides()) return {decode_factor, reciprocal, true};
  if (float_bits(reciprocal) == kF32MaxFinite) decode_factor = 1.0f / reciprocal;
  return {decode_factor, reciprocal, false};
}

/// Returns the value of `format` nearest to a positive one, saturating; its
/// smallest one instead of zero.
FP8LAB_HD constexpr float nearest_positive(FormatSpec format, float value) {
  const std::uint32_t code = encode(format, float_bits(value));
  return decode(format, code == 0u ? 1u : code);
}

/// Returns the FP32 scale rounded to the nearest value of the format in which it is stored,
/// saturating; zero becomes the smallest positive value. Values are quantized with the stored
/// scale: multiplied by its rounded reciprocal, or divided by it
/// (specification.md, "Scales", COAT).
FP8LAB_HD constexpr TileScale narrow_scale(const ScaleRule& rule, float qmax, float amax) {
  const float wanted = fp32_scale(rule, qmax, amax).decode;
  const float scale = rule.format == ScaleFormat::bf16 ? nearest_positive(kBF16, wanted)
                                                       : nearest_positive(kE4M3, wanted);
  return {scale, bounded_quotient(1.0f, scale), rule.divides()};
}

/// Returns the decode exponent of a tile with finite nonzero amax under a power-of-two rule, not
/// yet clamped. Logarithms are compared as integers: with amax = a * 2^i, Qmax = q * 2^j and a, q
/// 24-bit significands, log2(amax/Qmax) = i - j + log2(a/q), and |log2(a/q)| < 1.
FP8LAB_HD constexpr int decode_exponent(const ScaleRule& rule, FormatSpec element, float amax) {
  const float qmax = target_maximum(rule, element);
  const NormalizedF32 a = normalize_f32(float_bits(amax));
  const NormalizedF32 q = normalize_f32(float_bits(qmax));
  const int difference = a.exponent - q.exponent;
  switch (rule.rounding) {
    case ScaleRounding::ceil: return difference + (a.significand > q.significand ? 1 : 0);
    case ScaleRounding::floor: return difference - (a.significand < q.significand ? 1 : 0);
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
      return static_cast<int>(encode_e8m0(float_bits(ratio), true, Overflow::special)) - 127;
    }
    case ScaleRounding::even: {
      const std::uint32_t rounded = float_bits(amax) + (1u << (22 - element.fraction_bits()));
      const int field = static_cast<int>(rounded >> 23);
      return (field == 0 ? -126 : field - 127) - element.max_exponent() + bounded_margin(rule);
    }
  }
  return 0;
}

/// Returns the decode exponent of an all-zero tile: `rceil` stores code 0; `ocp_floor` and `even`
/// use the smallest normal FP32 number as amax (microxcaling); the others use scale 1
/// (TransformerEngine).
FP8LAB_HD constexpr int zero_tile_exponent(const ScaleRule& rule, FormatSpec element) {
  switch (rule.rounding) {
    case ScaleRounding::rceil: return -127;
    case ScaleRounding::ocp_floor:
    case ScaleRounding::even: return -126 - element.max_exponent() + bounded_margin(rule);
    default: return 0;
  }
}

/// Returns amax, kept away from zero by rule.amax_epsilon.
FP8LAB_HD constexpr float raised_amax(const ScaleRule& rule, float amax) {
  if (rule.epsilon_mode == EpsilonMode::add) return amax + rule.amax_epsilon;
  return amax < rule.amax_epsilon ? rule.amax_epsilon : amax;
}

/// Returns the scale of a tile with a scale format of one level (specification.md, "Scales").
/// `amax` is its largest magnitude, or the deviations that replace it.
///
/// amax is first raised by rule.amax_epsilon. FP32 scales, and those stored as BF16 or E4M3, follow
/// rule.arithmetic, each operation rounded to nearest even. Power-of-two scales follow
/// rule.rounding alone: decode = 2^e with e clamped to [-127, 127], or NaN above under e8m0 with
/// ScaleOverflow::nan, and the multiplier 2^-e is its exact reciprocal, so all three arithmetics
/// give the same codes. With a factor f the decode scale is RN(f * 2^e), at most the largest FP32
/// number, and the multiplier RN(2^-e * RN(1/f)). A zero tile gets a finite scale (see
/// zero_tile_exponent; 1 for the others). Infinite or NaN amax gives scale 1 (TransformerEngine);
/// for e8m0 it gives NaN, which makes the whole tile NaN, except that a saturating `rceil` stores
/// 2^127 for infinity.
FP8LAB_HD constexpr TileScale tile_scale(const ScaleRule& rule, FormatSpec element, float amax) {
  const std::uint32_t magnitude = float_bits(amax) & 0x7FFFFFFFu;
  const bool saturates =
      rule.format != ScaleFormat::e8m0 || rule.scale_overflow == ScaleOverflow::saturate;
  if (magnitude >= kF32Infinity) {
    if (rule.format != ScaleFormat::e8m0) return {};
    if (magnitude == kF32Infinity && rule.rounding == ScaleRounding::rceil && saturates) {
      return {power_of_two(127), power_of_two(-127), false};
    }
    return {bits_float(kF32NaN), bits_float(kF32NaN), false};
  }
  const float bounded = raised_amax(rule, bits_float(magnitude));
  const bool zero = float_bits(bounded) == 0u;
  if (!rule.is_power_of_two()) {
    if (zero) return {};
    const float qmax = target_maximum(rule, element);
    return rule.format == ScaleFormat::fp32 ? fp32_scale(rule, qmax, bounded)
                                            : narrow_scale(rule, qmax, bounded);
  }
  int exponent = zero ? zero_tile_exponent(rule, element) : decode_exponent(rule, element, bounded);
  if (exponent > 127 && !saturates) return {bits_float(kF32NaN), bits_float(kF32NaN), false};
  exponent = exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
  const float decode_factor = rule.factor * power_of_two(exponent);
  return {float_bits(decode_factor) == kF32Infinity ? bits_float(kF32MaxFinite) : decode_factor,
          power_of_two(-exponent) * (1.0f / rule.factor), false};
}

/// Returns the encode factor of a tensor, or with OuterScale::row of a row, with this amax under
/// ScaleFormat::nv_two_level. It brings the largest tile scale to the largest E4M3 number (to 256
/// with a choice between 6 and 4, whose scales are 1.5 times as large): min(448 Qmax / amax, FP32
/// max), and 1 if that is zero, or if amax is zero or NaN.
FP8LAB_HD constexpr float nv_tensor_factor(const ScaleRule& rule, FormatSpec element, float amax) {
  if (!(amax > 0.0f)) return 1.0f;
  const float bound = rule.four_over_six == FourOverSix::none ? 448.0f : 256.0f;
  const float factor = bounded_quotient(bound * max_finite(element), amax);
  return factor == 0.0f ? 1.0f : factor;
}

/// Returns the scale of a tile under ScaleFormat::nv_two_level in a tensor of encode factor S
/// (specification.md, "Scales", TransformerEngine): the stored s = E4M3(amax * RN(S * RN(1/Qmax))),
/// times 1.5 before the cast if `enlarged` (4 over 6), saturating; decode = RN(s * RN(1/S)), and
/// the multiplier is its reciprocal, at most the largest FP32 number. A tile whose s rounds to zero
/// becomes zero altogether. NaN amax gives NaN.
FP8LAB_HD constexpr TileScale nv_tile_scale(FormatSpec element, float tensor_factor, float amax,
                                            bool enlarged = false) {
  const float ratio = amax * (tensor_factor * (1.0f / max_finite(element)));
  const float stored = decode(kE4M3, encode(kE4M3, float_bits(enlarged ? ratio * 1.5f : ratio)));
  const float scale = canonical_nan(stored * (1.0f / tensor_factor));
  return {scale, canonical_nan(bounded_quotient(1.0f, scale)), false};
}

/// Returns one element's part of the error that decides between the two scales of FourOverSix:
/// |x - x'| for `mae`, its square for `mse`, where x' = decode * q in FP32 and q is cast to
/// nearest, directly. The parts are added in FP32: within each row of the source tile from left to
/// right, then over the rows.
FP8LAB_HD constexpr float four_over_six_error(FourOverSix choice, FormatSpec element,
                                              const TileScale& scale, float x) {
  const float value = decode(element, encode(element, float_bits(scaled_value(scale, x))));
  const float difference = x - scale.decode * value;
  const float magnitude = bits_float(float_bits(difference) & 0x7FFFFFFFu);
  return choice == FourOverSix::mse ? magnitude * magnitude : magnitude;
}

FP8LAB_NUMERICS_END
