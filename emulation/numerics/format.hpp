// Binary floating-point formats as records; every limit is derived from the record.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// The codes that are not numbers.
enum class SpecialValues : std::uint8_t {
  none,           ///< every code is a finite number (e2m1, e2m3, e3m2)
  nan_only,       ///< the all-ones code is NaN, no infinity (e4m3fn: OCP FP8; e8m0: OCP MX)
  ieee,           ///< the top exponent holds infinity and NaN (e5m2, bf16, fp16, fp32)
  unsigned_zero,  ///< the code of -0 is NaN, no infinity ("fnuz": Noune et al. 2022, AMD MI300)
  extended,       ///< the code of -0 is NaN (without a sign: the all-ones code), the largest other
                  ///< magnitude infinity (IEEE P3109, formats "e")
};

/// The encoding of a number in the bits of a code.
enum class Encoding : std::uint8_t {
  floating,         ///< sign, exponent and mantissa fields; without exponent bits fixed point
  twos_complement,  ///< fixed point as a signed integer; the most negative code is never produced
  logarithmic,      ///< sign and k: 0 for k = 0, else 2^(k / 2^mantissa_bits - bias), as BF16
  tile_logarithm,   ///< sign and k in the codebook of the tile, see tile_logarithm.hpp
};

/// A binary format of at most 32 bits with at most 8 exponent and 23 mantissa bits, so that every
/// value is exactly an FP32 value.
///
/// Fixed point is the case without exponent bits, in which every number is subnormal: steps of
/// 2^(1 - bias - mantissa_bits). In a logarithmic format the exponent and mantissa fields together
/// are the fixed-point logarithm. Its values are the powers rounded to nearest BF16, so that one
/// table serves every backend (LNS-Madam, arXiv:2106.13914), or with steps finer than 1/64 of an
/// octave rounded to nearest FP32; there are no subnormals.
struct FormatSpec {
  int exponent_bits = 8;
  int mantissa_bits = 23;
  int bias = 127;
  SpecialValues specials = SpecialValues::ieee;
  bool has_sign = true;
  bool has_subnormals = true;  ///< false for e8m0, where code 0 is 2^-bias, and for logarithms
  Encoding encoding = Encoding::floating;

  constexpr bool operator==(const FormatSpec&) const = default;

  /// Returns the width of a code in bits.
  FP8LAB_HD constexpr int bits() const {
    return (has_sign ? 1 : 0) + exponent_bits + mantissa_bits;
  }
  /// Returns the bit of the sign; 0 for an unsigned format.
  FP8LAB_HD constexpr std::uint32_t sign_mask() const {
    return has_sign ? 1u << (exponent_bits + mantissa_bits) : 0u;
  }
  /// Returns the exponent and mantissa fields, all ones.
  FP8LAB_HD constexpr std::uint32_t magnitude_mask() const {
    return (1u << (exponent_bits + mantissa_bits)) - 1u;
  }
  FP8LAB_HD constexpr bool has_infinity() const {
    return specials == SpecialValues::ieee || specials == SpecialValues::extended;
  }
  FP8LAB_HD constexpr bool has_nan() const { return specials != SpecialValues::none; }
  /// Returns true if a negative number that rounds to zero keeps its sign.
  FP8LAB_HD constexpr bool has_negative_zero() const {
    return has_sign && encoding != Encoding::twos_complement && !has_nan_at_negative_zero();
  }
  /// Returns true if the code that would be -0 is the only NaN.
  FP8LAB_HD constexpr bool has_nan_at_negative_zero() const {
    return specials == SpecialValues::unsigned_zero ||
           (specials == SpecialValues::extended && has_sign);
  }
  /// Returns the largest finite magnitude code.
  FP8LAB_HD constexpr std::uint32_t max_finite_code() const {
    if (specials == SpecialValues::nan_only) return magnitude_mask() - 1u;
    if (specials == SpecialValues::extended) return magnitude_mask() - (has_sign ? 1u : 2u);
    if (specials != SpecialValues::ieee) return magnitude_mask();
    return (((1u << exponent_bits) - 1u) << mantissa_bits) - 1u;
  }
  /// Returns the code of +infinity, for formats that have it.
  FP8LAB_HD constexpr std::uint32_t infinity_code() const { return max_finite_code() + 1u; }
  /// Returns the canonical NaN: the code of -0 if that is the only NaN, else sign positive, all
  /// magnitude bits set (specification.md, "Formats and codes"). Formats without NaN return the
  /// largest finite code, as the CUDA conversions do.
  FP8LAB_HD constexpr std::uint32_t nan_code() const {
    return has_nan_at_negative_zero() ? sign_mask() : magnitude_mask();
  }
  /// This function and is_nan ignore bits of `code` above the format's width.
  FP8LAB_HD constexpr bool is_infinity(std::uint32_t code) const {
    return has_infinity() && (code & magnitude_mask()) == infinity_code();
  }
  FP8LAB_HD constexpr bool is_nan(std::uint32_t code) const {
    if (has_nan_at_negative_zero()) {
      return (code & (sign_mask() | magnitude_mask())) == nan_code();
    }
    return (code & magnitude_mask()) > max_finite_code() && !is_infinity(code);
  }
  /// Returns the number of bits after the leading one of the largest number.
  FP8LAB_HD constexpr int fraction_bits() const {
    return exponent_bits == 0 ? mantissa_bits - 1 : mantissa_bits;
  }
  /// Returns the exponent of subnormals and of the smallest normal number.
  FP8LAB_HD constexpr int min_exponent() const { return has_subnormals ? 1 - bias : -bias; }
  /// Returns the exponent of the largest finite number (OCP MX: emax of the element format).
  FP8LAB_HD constexpr int max_exponent() const {
    return static_cast<int>(max_finite_code() >> mantissa_bits) - bias;
  }
};

inline constexpr FormatSpec kE4M3{4, 3, 7, SpecialValues::nan_only};
inline constexpr FormatSpec kE4M3Ieee{4, 3, 7, SpecialValues::ieee};  ///< Gaudi2, maximum 240
inline constexpr FormatSpec kE5M2{5, 2, 15, SpecialValues::ieee};
inline constexpr FormatSpec kE4M3Fnuz{4, 3, 8, SpecialValues::unsigned_zero};
inline constexpr FormatSpec kE5M2Fnuz{5, 2, 16, SpecialValues::unsigned_zero};
inline constexpr FormatSpec kE3M4{3, 4, 3, SpecialValues::nan_only};
inline constexpr FormatSpec kE2M3{2, 3, 1, SpecialValues::none};
inline constexpr FormatSpec kE3M2{3, 2, 3, SpecialValues::none};
inline constexpr FormatSpec kE2M1{2, 1, 1, SpecialValues::none};
/// Integers -127..127 and -7..7 (specification.md, "Formats and codes").
inline constexpr FormatSpec kInt8{
    0, 7, -6, SpecialValues::none, true, true, Encoding::twos_complement};
inline constexpr FormatSpec kInt4{
    0, 3, -2, SpecialValues::none, true, true, Encoding::twos_complement};
/// One integer and six fraction bits, sign and magnitude, largest 127/64 (OCP MX element).
inline constexpr FormatSpec kMxInt8{0, 7, 0, SpecialValues::none};
/// Eight bits with eight steps per octave, 2^(1/8) to 2^(127/8) (LNS-Madam).
inline constexpr FormatSpec kLns8{4, 3, 0, SpecialValues::none, true, false, Encoding::logarithmic};
/// Eight bits of a tile's own codebook (LogFMT-8).
inline constexpr FormatSpec kLogFmt8{
    0, 7, 0, SpecialValues::none, true, true, Encoding::tile_logarithm};
inline constexpr FormatSpec kE8M0{8, 0, 127, SpecialValues::nan_only, false, false};
inline constexpr FormatSpec kBF16{8, 7, 127, SpecialValues::ieee};
inline constexpr FormatSpec kFP16{5, 10, 15, SpecialValues::ieee};
inline constexpr FormatSpec kTF32{8, 10, 127, SpecialValues::ieee};  ///< recipes write e8m10
inline constexpr FormatSpec kFP32{8, 23, 127, SpecialValues::ieee};

/// A format and its name in recipes.
struct NamedFormat {
  std::string_view name;
  FormatSpec format;
};

inline constexpr NamedFormat kNamedFormats[] = {
    {"e4m3fn", kE4M3},     {"e5m2", kE5M2},         {"e3m4", kE3M4},
    {"e2m3", kE2M3},       {"e3m2", kE3M2},         {"e2m1", kE2M1},
    {"e8m0", kE8M0},       {"bf16", kBF16},         {"fp16", kFP16},
    {"fp32", kFP32},       {"e4m3_240", kE4M3Ieee}, {"int8", kInt8},
    {"int4", kInt4},       {"mxint8", kMxInt8},     {"lns8", kLns8},
    {"logfmt8", kLogFmt8}, {"e4m3fnuz", kE4M3Fnuz}, {"e5m2fnuz", kE5M2Fnuz},
};

/// The rounding of a value between two representable ones.
enum class Rounding : std::uint8_t {
  nearest,        ///< to nearest, ties to the even code
  ties_down,      ///< to nearest, ties to the smaller magnitude (Quartet, DeepGEMM)
  ties_positive,  ///< to nearest, ties to the larger number (look-up table of MS-AMP)
  toward_zero,    ///< magnitude truncated
  stochastic,     ///< up with probability (|x|-lo)/(hi-lo), from caller-supplied random bits
};

/// The result for a rounded magnitude above the largest finite one.
enum class Overflow : std::uint8_t {
  saturate,  ///< largest finite magnitude, also for infinity (CUDA "satfinite")
  special,   ///< infinity if the format has one, else NaN with the sign kept (CUDA "nosat")
};

FP8LAB_NUMERICS_END
