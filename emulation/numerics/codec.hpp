// Conversion between FP32 and any format of at most 32 bits, with every rounding, on integers.
#pragma once

#include <cstdint>

#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/logarithm.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr std::uint32_t kF32NaN = 0x7FFFFFFFu;  ///< the canonical NaN of every backend
inline constexpr std::uint32_t kF32Infinity = 0x7F800000u;
inline constexpr std::uint32_t kF32MaxFinite = 0x7F7FFFFFu;

/// Returns the value, with any NaN replaced by the canonical one. x86 and the GPU return different
/// NaN bits from the same operation, so results that may be NaN pass through here. Has no branch.
FP8LAB_HD constexpr float canonical_nan(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t is_nan = 0u - static_cast<std::uint32_t>((bits & 0x7FFFFFFFu) > kF32Infinity);
  return bits_float((bits & ~is_nan) | (is_nan & kF32NaN));
}

/// Returns the position of the highest set bit of a nonzero value (0 for 1, 31 for 2^31).
FP8LAB_HD_INLINE constexpr int highest_bit(std::uint32_t value) {
  std::uint32_t position = value >= 0x10000u ? 16u : 0u;  // bisection without a loop, to vectorise
  position |= (value >> position) >= 0x100u ? 8u : 0u;
  position |= (value >> position) >= 0x10u ? 4u : 0u;
  position |= (value >> position) >= 0x4u ? 2u : 0u;
  position |= (value >> position) >= 0x2u ? 1u : 0u;
  return static_cast<int>(position);
}

/// An FP32 magnitude as significand * 2^(exponent - 23), 2^23 <= significand < 2^24.
struct NormalizedF32 {
  std::uint32_t significand = 0;
  int exponent = 0;
};

/// Splits a magnitude (sign bit clear). FP32 subnormals are normalised as well; zero has
/// significand 0, and infinity becomes 2^128.
FP8LAB_HD_INLINE constexpr NormalizedF32 normalize_f32(std::uint32_t magnitude) {
  const std::uint32_t field = magnitude >> 23;
  const int top = highest_bit(magnitude);
  const std::uint32_t normal = (magnitude & 0x7FFFFFu) | 0x800000u;
  const std::uint32_t subnormal = magnitude << (top < 23 ? 23 - top : 0);
  return {field != 0 ? normal : subnormal, field != 0 ? static_cast<int>(field) - 127 : top - 149};
}

/// Returns significand * 2^-shift as an integer, rounded once; significand < 2^24, 0 <= shift.
/// `negative` is the sign of the number, which ties_positive needs. Stochastic adds the low `shift`
/// bits of `random_bits` below the kept bits and truncates; if more than 32 bits are discarded,
/// probabilities are multiples of 2^-32, rounded down.
FP8LAB_HD_INLINE constexpr std::uint32_t round_shifted(std::uint32_t significand, int shift,
                                                       Rounding rounding, bool negative,
                                                       std::uint32_t random_bits) {
  if (rounding == Rounding::stochastic) {
    const int bounded = shift < 57 ? shift : 57;                     // 57 and more give 0
    const std::uint64_t below = (std::uint64_t{1} << bounded) - 1u;  // the discarded bits
    const std::uint64_t addend = std::uint64_t{random_bits} << (bounded > 32 ? bounded - 32 : 0);
    return static_cast<std::uint32_t>((significand + (addend & below)) >> bounded);
  }
  const int bounded = shift < 31 ? shift : 31;  // 26 and more give 0
  const std::uint32_t below = (1u << bounded) - 1u;
  // Just under one half, or one half if a tie rounds up: to even for an odd quotient.
  const std::uint32_t odd = (significand >> bounded) & 1u;
  const std::uint32_t positive = negative ? 0u : 1u;
  const std::uint32_t tie = rounding == Rounding::nearest         ? odd
                            : rounding == Rounding::ties_positive ? positive
                                                                  : 0u;
  const std::uint32_t half = ((below >> 1) + tie) & below;
  return (significand + (rounding == Rounding::toward_zero ? 0u : half)) >> bounded;
}

/// Returns the magnitude code of a value beyond the largest finite one.
FP8LAB_HD_INLINE constexpr std::uint32_t overflow_code(FormatSpec format, Overflow overflow) {
  if (overflow == Overflow::saturate || !format.has_nan()) return format.max_finite_code();
  return format.has_infinity() ? format.infinity_code() : format.nan_code();
}

/// Returns the code of an FP32 value, rounded exactly once to the target's grid, including targets
/// that are subnormal.
///
/// CUDA behaviour (specification.md, "Formats and codes"): overflow is decided after rounding with
/// an unlimited exponent; NaN gives the positive canonical NaN, or the positive maximum if the
/// format has no NaN; infinity overflows; zero and results that round to zero keep the sign if the
/// format has a -0. The same overflow rule holds for every rounding, so a value truncated to more
/// than the maximum also overflows. The codes of negative integers are two's complements.
/// Logarithmic formats: see encode_logarithm. Formats without a sign ignore it; those without
/// subnormals give code 0 for all smaller values (for e8m0, `toward_zero` equals the CUDA
/// conversion and `encode_e8m0` offers both directions). `random_bits` affects stochastic rounding
/// only, see round_shifted.
FP8LAB_HD_INLINE constexpr std::uint32_t encode(FormatSpec format, std::uint32_t f32_bits,
                                                Rounding rounding = Rounding::nearest,
                                                Overflow overflow = Overflow::saturate,
                                                std::uint32_t random_bits = 0) {
  // Selects instead of early returns: with a constant format the compiler can vectorise a loop.
  const std::uint32_t magnitude = f32_bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (f32_bits >> 31) != 0 ? format.sign_mask() : 0u;
  const NormalizedF32 value = normalize_f32(magnitude);
  if (format.encoding == Encoding::logarithmic) {
    const std::uint32_t power =
        encode_logarithm(format, value.significand, value.exponent, rounding, random_bits);
    return magnitude > kF32Infinity ? format.nan_code() : sign | power;
  }
  const int distance = value.exponent - format.min_exponent();
  const int above = distance < 0 ? 0 : distance;
  const int below = distance < 0 ? -distance : 0;
  // The hidden bit (or a carry out of the mantissa) adds one to the exponent field.
  std::uint32_t code = round_shifted(value.significand, 23 - format.mantissa_bits + below, rounding,
                                     (f32_bits >> 31) != 0, random_bits) +
                       (static_cast<std::uint32_t>(above) << format.mantissa_bits);
  if (!format.has_subnormals) code = distance < 0 ? 0u : code - (1u << format.mantissa_bits);
  code = code > format.max_finite_code() ? overflow_code(format, overflow) : code;
  // nan_code is the maximum if there is no NaN.
  const std::uint32_t negated = (2u * format.sign_mask() - code) & (2u * format.sign_mask() - 1u);
  const bool negate = format.encoding == Encoding::twos_complement && sign != 0;
  const std::uint32_t kept_sign = format.has_negative_zero() || code != 0 ? sign : 0u;
  const std::uint32_t signed_code = negate ? negated : kept_sign | code;
  return magnitude > kF32Infinity ? format.nan_code() : signed_code;
}

/// Returns the FP32 bits of a code, exactly, for formats whose codes mean the same in every tile.
/// NaN becomes the canonical 0x7FFFFFFF whatever its sign; bits of `code` above the format's width
/// are ignored. The most negative integer is itself, although encode never returns it.
FP8LAB_HD constexpr std::uint32_t decode_bits(FormatSpec format, std::uint32_t code) {
  const std::uint32_t sign = (code & format.sign_mask()) != 0 ? 0x80000000u : 0u;
  std::uint32_t magnitude = code & format.magnitude_mask();
  if (format.encoding == Encoding::logarithmic) return sign | decode_logarithm(format, magnitude);
  if (format.encoding == Encoding::twos_complement && sign != 0) {
    magnitude = format.sign_mask() - magnitude;
  }
  if (format.is_nan(code)) return kF32NaN;
  if (format.is_infinity(code)) return sign | kF32Infinity;
  const std::uint32_t field = magnitude >> format.mantissa_bits;
  std::uint32_t significand = magnitude & ((1u << format.mantissa_bits) - 1u);
  int exponent = static_cast<int>(field) - format.bias;
  if (field == 0 && format.has_subnormals) {
    exponent = format.min_exponent();
  } else {
    significand |= 1u << format.mantissa_bits;
  }
  if (significand == 0) return sign;
  const int top = highest_bit(significand);
  const int leading = exponent - format.mantissa_bits + top;  // exponent of the value itself
  if (leading >= -126) {
    const std::uint32_t fraction = (significand << (23 - top)) & 0x7FFFFFu;
    return sign | (static_cast<std::uint32_t>(leading + 127) << 23) | fraction;
  }
  // An FP32 subnormal. The shift is in 0 to 22, as no format has values below 2^-149.
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): needs the formats' ranges
  return sign | (significand << (exponent - format.mantissa_bits + 149));
}

/// Returns the FP32 value of a code, see decode_bits.
FP8LAB_HD constexpr float decode(FormatSpec format, std::uint32_t code) {
  return bits_float(decode_bits(format, code));
}

/// Returns the e8m0 code (value 2^(code-127), 0xFF = NaN) of the magnitude of an FP32 value,
/// rounded toward zero or toward +infinity (specification.md, "Formats and codes"). NaN gives 0xFF;
/// infinity and values that round above 2^127 give 0xFE under `saturate` and 0xFF under `special`;
/// zero gives 0 because the format has no zero.
FP8LAB_HD constexpr std::uint32_t encode_e8m0(std::uint32_t f32_bits, bool toward_positive,
                                              Overflow overflow) {
  const std::uint32_t magnitude = f32_bits & 0x7FFFFFFFu;
  if (magnitude > kF32Infinity) return 0xFFu;
  const std::uint32_t too_large = overflow == Overflow::saturate ? 0xFEu : 0xFFu;
  if (magnitude == kF32Infinity) return too_large;
  std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = magnitude & 0x7FFFFFu;
  if (toward_positive && mantissa != 0) {
    // 2^-127 is the FP32 subnormal 0x400000: code 0 covers everything up to it.
    exponent = exponent == 0 ? (mantissa > 0x400000u ? 1u : 0u) : exponent + 1u;
  }
  return exponent == 0xFFu ? too_large : exponent;
}

/// Returns BF16 bits, rounded to nearest even, overflow to infinity, NaN 0x7FFF: equal to
/// encode(kBF16, .., nearest, special). Has no branches, so loops over it vectorise.
FP8LAB_HD constexpr std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > kF32Infinity ? 0x7FFFu : rounded);
}

/// Returns the BF16 bits of a double, rounded once to nearest even, NaN 0x7FFF. Rounds first to odd
/// in FP32, whose 16 extra bits suffice to make the second rounding correct.
FP8LAB_HD constexpr std::uint16_t bf16_of_double(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  std::uint32_t bits = float_bits(nearest);
  if (back != value && value == value && (bits & 1u) == 0) {
    // Inexact with an even last bit: the neighbour on the other side of `value` is the odd one.
    const bool away = (back < value) == (value > 0.0);
    bits = away ? bits + 1u : bits - 1u;
  }
  return to_bf16(bits_float(bits));
}

/// Returns the FP32 value of BF16 bits; exact (a NaN keeps its bits).
FP8LAB_HD constexpr float from_bf16(std::uint16_t bits) {
  return bits_float(static_cast<std::uint32_t>(bits) << 16);
}

/// Returns the largest finite value of a format, Qmax of specification.md, "Formats and codes" (448
/// for e4m3fn); 1 if that value is the scale of the tile.
FP8LAB_HD constexpr float max_finite(FormatSpec format) {
  if (format.encoding == Encoding::tile_logarithm) return 1.0f;
  return decode(format, format.max_finite_code());
}

/// Returns true if every value of `from`, infinity, NaN and the most negative integer included, is
/// a value of `to`. A logarithmic or two's complement format holds only itself here, and no other
/// format holds the values of a tile's own codebook.
FP8LAB_HD constexpr bool holds_values(FormatSpec to, FormatSpec from) {
  if (from == to) return true;
  if (to.encoding != Encoding::floating || !to.has_subnormals) return false;
  if (from.encoding == Encoding::tile_logarithm) return false;
  if (from.has_infinity() && !to.has_infinity()) return false;
  if (from.has_nan() && !to.has_nan()) return false;
  if (from.has_sign && !to.has_sign) return false;
  if (from.has_negative_zero() && !to.has_negative_zero()) return false;
  // Powers have the significands of BF16, or of FP32.
  const bool powers = from.encoding == Encoding::logarithmic;
  const int power_bits = from.mantissa_bits <= kMaxLogarithmBits ? 7 : 23;
  const int fraction_bits = powers ? power_bits : from.fraction_bits();
  const int lowest_bit = from.min_exponent() - (powers ? power_bits : from.mantissa_bits);
  const bool integer = from.encoding == Encoding::twos_complement;
  const float largest = integer ? -decode(from, from.sign_mask()) : max_finite(from);
  return fraction_bits <= to.fraction_bits() &&
         lowest_bit >= to.min_exponent() - to.mantissa_bits && largest <= max_finite(to);
}

FP8LAB_NUMERICS_END
