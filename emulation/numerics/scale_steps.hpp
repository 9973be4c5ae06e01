// Power-of-two scales by one addition: tile_scale for the ordinary amaxes of a kernel's inner loop.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/scaling.hpp"

FP8LAB_NUMERICS_BEGIN

/// tile_scale under a rule with power-of-two scales, over the amaxes whose bits lie in [lowest,
/// lowest + count). There the decode exponent grows by one with each binade of the amax, and once
/// inside every binade, behind the same mantissa: adding `carry` to the amax makes that mantissa
/// overflow into the exponent field.
struct ScaleSteps {
  std::uint32_t lowest = 0, count = 0;  ///< count 0: holds nowhere
  std::uint32_t carry = 0;
  std::uint32_t offset = 0;  ///< exponent field of the decode scale minus that of the sum, mod 2^32

  FP8LAB_HD_INLINE constexpr bool holds_for(std::uint32_t amax_bits) const {
    return amax_bits - lowest < count;
  }
  /// tile_scale where holds_for.
  FP8LAB_HD_INLINE constexpr TileScale scale(std::uint32_t amax_bits) const {
    const std::uint32_t field = ((amax_bits + carry) >> 23) + offset;
    return {bits_float(field << 23), bits_float((254u - field) << 23), false};
  }
};

/// The steps of `rule`, found by asking tile_scale; without any for other scale formats and where
/// amaxes between 2^-80 and 2^80 can come near the ends of the exponent range.
constexpr ScaleSteps scale_steps(const ScaleRule& rule, FormatSpec element) {
  constexpr std::uint32_t kOne = 0x3F800000u, kMantissa = 0x007FFFFFu;
  constexpr std::uint32_t kLowest = (127u - 80u) << 23, kHighest = (127u + 80u) << 23;
  constexpr std::uint32_t kMargin = 40u;
  if (!rule.is_power_of_two()) return {};
  if (rule.epsilon_mode == EpsilonMode::add && rule.amax_epsilon != 0.0f) return {};
  const auto field = [&](std::uint32_t mantissa) {
    return float_bits(tile_scale(rule, element, bits_float(kOne | mantissa)).decode) >> 23;
  };
  const std::uint32_t epsilon = rule.amax_epsilon > 0.0f ? float_bits(rule.amax_epsilon) : 0u;
  const std::uint32_t first = epsilon > kLowest ? epsilon : kLowest;
  if (epsilon >= kOne || field(0) < 127u - kMargin || field(0) > 127u + kMargin) return {};
  std::uint32_t below = 0, above = kMantissa + 1;  // the last mantissa before the step
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (field(middle) == field(0) ? below : above) = middle;
  }
  return {first, kHighest - first, kMantissa - below, field(0) - 127u};
}

FP8LAB_NUMERICS_END
