// Logarithmic number formats: a code is a sign and a fixed-point base-2 logarithm.
#pragma once

#include <cstdint>

#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Finest logarithmic step: neighbouring powers of 2^(1/64) still round to different BF16 numbers.
inline constexpr int kMaxLogarithmBits = 6;

/// 2^(i/64) in units of 2^-7, rounded to nearest: the significand of a BF16 number; 0 <= i < 64.
FP8LAB_HD constexpr std::uint32_t bf16_power(std::uint32_t i) {
  constexpr std::uint8_t kPowers[64] = {
      128, 129, 131, 132, 134, 135, 137, 138, 140, 141, 143, 144, 146, 147, 149, 151,
      152, 154, 156, 157, 159, 161, 162, 164, 166, 168, 170, 171, 173, 175, 177, 179,
      181, 183, 185, 187, 189, 191, 193, 195, 197, 200, 202, 204, 206, 208, 211, 213,
      215, 218, 220, 222, 225, 227, 230, 232, 235, 237, 240, 243, 245, 248, 251, 253};
  return kPowers[i];
}

/// Smallest 24-bit significand that is at least 2^(i/128); 0 <= i < 128. For odd i that is where
/// logarithms in steps of 1/64 round up; the power is irrational, so there are no ties.
FP8LAB_HD constexpr std::uint32_t significand_of_power(std::uint32_t i) {
  constexpr std::uint32_t kSignificands[128] = {
      0x800000, 0x80B1EE, 0x8164D2, 0x8218B0, 0x82CD87, 0x83835A, 0x843A29, 0x84F1F7, 0x85AAC4,
      0x866492, 0x871F62, 0x87DB36, 0x88980F, 0x8955EF, 0x8A14D6, 0x8AD4C7, 0x8B95C2, 0x8C57CA,
      0x8D1AE0, 0x8DDF05, 0x8EA43A, 0x8F6A82, 0x9031DD, 0x90FA4D, 0x91C3D4, 0x928E73, 0x935A2C,
      0x942700, 0x94F4F0, 0x95C3FF, 0x96942E, 0x97657E, 0x9837F1, 0x990B88, 0x99E046, 0x9AB62B,
      0x9B8D3A, 0x9C6574, 0x9D3EDA, 0x9E196F, 0x9EF533, 0x9FD229, 0xA0B052, 0xA18FAF, 0xA27044,
      0xA35210, 0xA43516, 0xA51958, 0xA5FED7, 0xA6E595, 0xA7CD94, 0xA8B6D6, 0xA9A15B, 0xAA8D27,
      0xAB7A3A, 0xAC6897, 0xAD583F, 0xAE4935, 0xAF3B79, 0xB02F0E, 0xB123F6, 0xB21A32, 0xB311C5,
      0xB40AAF, 0xB504F4, 0xB60094, 0xB6FD92, 0xB7FBF0, 0xB8FBB0, 0xB9FCD3, 0xBAFF5B, 0xBC034B,
      0xBD08A4, 0xBE0F69, 0xBF179A, 0xC0213B, 0xC12C4D, 0xC238D3, 0xC346CD, 0xC4563F, 0xC5672B,
      0xC67991, 0xC78D75, 0xC8A2D9, 0xC9B9BE, 0xCAD227, 0xCBEC15, 0xCD078C, 0xCE248D, 0xCF4319,
      0xD06334, 0xD184E0, 0xD2A81E, 0xD3CCF1, 0xD4F35B, 0xD61B5E, 0xD744FD, 0xD8703A, 0xD99D16,
      0xDACB95, 0xDBFBB8, 0xDD2D82, 0xDE60F5, 0xDF9613, 0xE0CCDF, 0xE2055B, 0xE33F8A, 0xE47B6D,
      0xE5B907, 0xE6F85B, 0xE8396B, 0xE97C39, 0xEAC0C7, 0xEC0719, 0xED4F31, 0xEE9910, 0xEFE4BA,
      0xF13231, 0xF28178, 0xF3D290, 0xF5257E, 0xF67A42, 0xF7D0E0, 0xF9295A, 0xFA83B3, 0xFBDFEE,
      0xFD3E0D, 0xFE9E12};
  return kSignificands[i];
}

/// FP32 bits of the magnitude with code k: 0 for k = 0, else 2^(k / 2^mantissa_bits - bias) rounded
/// to nearest BF16.
FP8LAB_HD constexpr std::uint32_t decode_logarithm(FormatSpec format, std::uint32_t k) {
  if (k == 0) return 0;
  const std::uint32_t fraction = k & ((1u << format.mantissa_bits) - 1u);
  const std::uint32_t power = bf16_power(fraction << (kMaxLogarithmBits - format.mantissa_bits));
  const int exponent = static_cast<int>(k >> format.mantissa_bits) - format.bias;
  return (static_cast<std::uint32_t>(exponent + 127) << 23) | ((power & 0x7Fu) << 16);
}

/// Whether |x| = significand * 2^(exponent - 23), between the neighbours k and k + 1, is rounded up
/// with probability (|x| - lo) / (hi - lo), a multiple of 2^-32 rounded up.
FP8LAB_HD constexpr bool logarithm_rounds_up(FormatSpec format, std::uint32_t k,
                                             std::uint32_t significand, int exponent,
                                             std::uint32_t random_bits) {
  const std::uint32_t lo = decode_logarithm(format, k);
  const std::uint32_t hi = decode_logarithm(format, k + 1);
  // In units of the last place of x, whose binade is that of lo; hi may lie in the next one.
  const std::uint32_t lo_significand = (lo & 0x7FFFFFu) | 0x800000u;
  const std::uint32_t hi_significand = (hi & 0x7FFFFFu) | 0x800000u;
  const int above = static_cast<int>(hi >> 23) - 127 - exponent;
  const std::uint64_t part = significand - lo_significand;
  const std::uint64_t whole = (std::uint64_t{hi_significand} << above) - lo_significand;
  return ((std::uint64_t{random_bits} * whole) >> 32) < part;
}

/// Magnitude code of |x| = significand * 2^(exponent - 23), with 2^23 <= significand < 2^24, or 0.
///
/// LNS-Madam (recipes.md section 3.4): the nearest rule rounds log2 |x|, exactly; toward_zero takes
/// the largest value not above |x|, stochastic weighs the two neighbours by distance. Zero has
/// the smallest code, k = 0, which the paper leaves open; all other values are at least code 1, so
/// that no weight is lost to zero. Larger values saturate.
FP8LAB_HD constexpr std::uint32_t encode_logarithm(FormatSpec format, std::uint32_t significand,
                                                   int exponent, Rounding rounding,
                                                   std::uint32_t random_bits) {
  if (significand == 0) return 0;
  const int bits = format.mantissa_bits;
  const std::uint32_t largest = format.max_finite_code();
  const int octave = exponent + format.bias;
  if (octave < 0) return 1;
  if (octave > static_cast<int>(largest >> bits)) return largest;
  const bool to_nearest = rounding != Rounding::toward_zero && rounding != Rounding::stochastic;
  const std::uint32_t step = 128u >> bits;
  std::uint32_t fraction = 0;
  if (to_nearest) {
    while (fraction < (1u << bits) &&
           significand >= significand_of_power(fraction * step + step / 2)) {
      ++fraction;
    }
  } else {
    while (fraction + 1 < (1u << bits) && significand >= bf16_power((fraction + 1) * step / 2)
                                                             << 16) {
      ++fraction;
    }
  }
  std::uint32_t k = (static_cast<std::uint32_t>(octave) << bits) + fraction;
  if (rounding == Rounding::stochastic && k >= 1 && k < largest &&
      logarithm_rounds_up(format, k, significand, exponent, random_bits)) {
    ++k;
  }
  return k < 1 ? 1 : k > largest ? largest : k;
}

FP8LAB_NUMERICS_END
