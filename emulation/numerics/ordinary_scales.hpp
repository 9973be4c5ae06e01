// tile_scale for the ordinary amaxes of a kernel's inner loop: one addition for a power-of-two
// scale, two divisions for an FP32 scale.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/scaling.hpp"

FP8LAB_NUMERICS_BEGIN

/// tile_scale under one rule, for amaxes whose bits are in [lowest, lowest + count).
///
/// FP32 scales (`quotients`): none of the cases that fp32_scale bounds occurs there, and no amax is
/// raised. Power-of-two scales: the decode exponent grows by one with each binade of the amax, and
/// once inside every binade, after the same mantissa: adding `carry` to the amax makes that
/// mantissa overflow into the exponent field.
struct OrdinaryScales {
  std::uint32_t lowest = 0, count = 0;  ///< count 0: holds for no amax
  bool quotients = false;
  bool encode_first = false;  ///< ScaleArithmetic::enc_div
  bool divide = false;        ///< as TileScale::divide
  float target = 0.0f;        ///< the magnitude to which the amax is scaled
  std::uint32_t carry = 0;
  std::uint32_t offset = 0;  ///< exponent field of the decode scale minus that of the sum, mod 2^32

  FP8LAB_HD_INLINE constexpr bool holds_for(std::uint32_t amax_bits) const {
    return amax_bits - lowest < count;
  }
  /// Returns tile_scale. Precondition: holds_for.
  FP8LAB_HD_INLINE constexpr TileScale scale(std::uint32_t amax_bits) const {
    return quotients ? by_quotients(bits_float(amax_bits)) : by_steps(amax_bits);
  }

 private:
  FP8LAB_HD_INLINE constexpr TileScale by_quotients(float amax) const {
    const float first = encode_first ? target / amax : amax / target;
    const float second = 1.0f / first;
    return encode_first ? TileScale{second, first, divide} : TileScale{first, second, divide};
  }
  FP8LAB_HD_INLINE constexpr TileScale by_steps(std::uint32_t amax_bits) const {
    const std::uint32_t field = ((amax_bits + carry) >> 23) + offset;
    return {bits_float(field << 23), bits_float((254u - field) << 23), false};
  }
};

/// Returns the ordinary scales of `rule`: for amaxes between 2^-80 and 2^80, and from the epsilon
/// on if that is a floor. Returns none for other scale formats, for an epsilon that is added, for
/// a factor on powers of two, and if amaxes in that range can come near the ends of the exponent
/// range.
constexpr OrdinaryScales ordinary_scales(const ScaleRule& rule, FormatSpec element) {
  constexpr std::uint32_t kOne = 0x3F800000u, kMantissa = 0x007FFFFFu;
  constexpr std::uint32_t kLowest = (127u - 80u) << 23, kHighest = (127u + 80u) << 23;
  constexpr std::uint32_t kMargin = 40u;
  if (rule.format != ScaleFormat::fp32 && !rule.is_power_of_two()) return {};
  if (rule.epsilon_mode == EpsilonMode::add && rule.amax_epsilon != 0.0f) return {};
  if (rule.factor != 1.0f) return {};
  const std::uint32_t epsilon = rule.amax_epsilon > 0.0f ? float_bits(rule.amax_epsilon) : 0u;
  if (epsilon >= kOne) return {};
  const auto field = [&](std::uint32_t mantissa) {
    return float_bits(tile_scale(rule, element, bits_float(kOne | mantissa)).decode) >> 23;
  };
  if (field(0) < 127u - kMargin || field(0) > 127u + kMargin) return {};
  OrdinaryScales scales;
  scales.lowest = epsilon > kLowest ? epsilon : kLowest;
  scales.count = kHighest - scales.lowest;
  if (rule.format == ScaleFormat::fp32) {
    scales.quotients = true;
    scales.encode_first = rule.arithmetic == ScaleArithmetic::enc_div;
    scales.divide = !scales.encode_first && rule.divides();
    scales.target = target_maximum(rule, element);
    return scales;
  }
  // Finds the step by bisection with tile_scale.
  std::uint32_t below = 0, above = kMantissa + 1;  // the last mantissa before the step
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (field(middle) == field(0) ? below : above) = middle;
  }
  scales.carry = kMantissa - below;
  scales.offset = field(0) - 127u;
  return scales;
}

FP8LAB_NUMERICS_END
