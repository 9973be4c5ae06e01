// The standard deviation of a tile, which may replace its amax in a scale rule (QuEST).
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/scaling.hpp"

FP8LAB_NUMERICS_BEGIN

/// Most elements of a tile with a deviation: their sums stay below 2^63.
inline constexpr std::int64_t kLargestDeviationTile = 1024;

/// The first two moments of a tile, its mean removed, from integers: with 2^e <= amax < 2^(e+1)
/// element x enters as v, the integer nearest to x * 2^(20-e), ties away from zero. The sums of v
/// and v^2 are exact, so their order does not matter.
class TileDeviation {
 public:
  static constexpr int kFractionBits = 20;  ///< fraction bits of v, below the exponent of the amax

  /// `amax`: the magnitude bits of the tile's largest element.
  FP8LAB_HD constexpr explicit TileDeviation(std::uint32_t amax)
      : amax_(amax), exponent_(amax == 0 ? 0 : normalize_f32(amax).exponent) {}

  FP8LAB_HD constexpr void add(float x) {
    const std::int64_t v = fixed_point(x);
    ++count_;
    sum_ += v;
    squares_ += v * v;
  }

  /// Returns the bits of RN(deviations * sigma), where sigma is the deviation of the population:
  /// with n elements and V = n sum(v^2) - sum(v)^2 it is deviations * sqrt(V) / n * 2^(e-20), where
  /// V as FP32, its root, the product with `deviations`, the quotient and the product with 2^e are
  /// rounded one after the other; at most the largest FP32 number. Returns the amax itself if V is
  /// zero, as in a constant tile, or if the amax is infinite or NaN.
  FP8LAB_HD std::uint32_t times(float deviations) const {
    if (amax_ >= kF32Infinity) return amax_;
    const std::int64_t variance = count_ * squares_ - sum_ * sum_;
    if (variance == 0) return amax_;
    const float root = __builtin_sqrtf(static_cast<float>(variance));
    const float scaled = deviations * root / static_cast<float>(count_);
    const std::uint32_t bits =
        float_bits(scaled * power_of_two(-kFractionBits) * power_of_two(exponent_));
    return bits < kF32Infinity ? bits : kF32MaxFinite;
  }

 private:
  FP8LAB_HD constexpr std::int64_t fixed_point(float x) const {
    const std::uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu;
    if (magnitude == 0 || magnitude >= kF32Infinity) return 0;
    const NormalizedF32 value = normalize_f32(magnitude);
    const int shift = 23 - kFractionBits + exponent_ - value.exponent;
    if (shift > 24) return 0;
    const std::int64_t v = (value.significand + (1u << (shift - 1))) >> shift;
    return float_bits(x) >> 31 != 0 ? -v : v;
  }

  std::uint32_t amax_;
  int exponent_;
  std::int64_t count_ = 0, sum_ = 0, squares_ = 0;
};

FP8LAB_NUMERICS_END
