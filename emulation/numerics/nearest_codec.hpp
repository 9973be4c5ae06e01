// Rounding to nearest even into small formats with few operations, for loops over many elements.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// numerics::encode to nearest even as constants of one format. The rounding is one FP32 addition
/// of the power of two whose unit in the last place is the spacing of the target's grid at the
/// value. The low bits of the sum then count steps of the grid, and each binade above the
/// subnormals adds 2^mantissa_bits of them.
struct NearestCodec {
  std::uint32_t shift = 0;            ///< FP32 mantissa bits dropped
  std::uint32_t smallest_normal = 0;  ///< FP32 bits
  std::uint32_t limit = 0;            ///< FP32 bits; anything above has the same code
  std::uint32_t max_code = 0, overflow = 0, nan_code = 0;
  std::uint32_t sign_shift = 0;  ///< from bit 31 to the sign of the code
  std::uint32_t negated = 0;     ///< mask of the bits that a minus sign
                                 ///< inverts, all ones for integers
  std::uint32_t zero_sign = 0;   ///< mask of the sign of zero, zero if the format has no -0
  std::uint32_t code_mask = 0;

  constexpr NearestCodec() = default;
  /// Precondition: applies(format).
  FP8LAB_HD constexpr NearestCodec(FormatSpec format, Overflow treatment)
      : shift(static_cast<std::uint32_t>(23 - format.mantissa_bits)),
        smallest_normal(static_cast<std::uint32_t>(127 + format.min_exponent()) << 23),
        limit(static_cast<std::uint32_t>(128 + format.max_exponent()) << 23),
        max_code(format.max_finite_code()),
        overflow(overflow_code(format, treatment)),
        nan_code(format.nan_code()),
        sign_shift(static_cast<std::uint32_t>(32 - format.bits())),
        negated(format.encoding == Encoding::twos_complement ? ~0u : 0u),
        zero_sign(format.has_negative_zero() ? ~0u : 0u),
        code_mask(2u * format.sign_mask() - 1u) {}

  /// Returns true for signed formats of at most 8 bits, floating or integer. The addends up to
  /// 2^(max exponent + 1 + shift) must be normal FP32 values.
  static constexpr bool applies(FormatSpec format) {
    const bool has_grid =
        format.encoding == Encoding::floating || format.encoding == Encoding::twos_complement;
    return has_grid && format.bits() <= 8 && format.has_sign && format.has_subnormals &&
           format.min_exponent() >= -126 &&
           format.max_exponent() + 1 + 23 - format.mantissa_bits <= 127;
  }

  /// Returns encode(format, bits of value, nearest, treatment).
  FP8LAB_HD constexpr std::uint32_t encode(float value) const {
    constexpr std::uint32_t kExponentField = 0x7F800000u;
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t clamped = magnitude < limit ? magnitude : limit;
    const std::uint32_t exponent = clamped & kExponentField;
    const std::uint32_t grid = exponent > smallest_normal ? exponent : smallest_normal;
    const std::uint32_t addend = grid + (shift << 23);
    const std::uint32_t steps = float_bits(bits_float(clamped) + bits_float(addend)) - addend;
    std::uint32_t code = steps + ((grid - smallest_normal) >> shift);
    code = code > max_code ? overflow : code;
    // A negative integer is the complement plus one, which includes the sign bit.
    const std::uint32_t minus = (0u - (bits >> 31)) & negated;
    code = ((code ^ minus) - minus) & code_mask;
    const std::uint32_t signed_codes = code != 0 ? ~0u : zero_sign;
    code |= (bits & 0x80000000u & ~minus & signed_codes) >> sign_shift;
    // A mask instead of a select: the compiler would move the addition into a branch, and a
    // loop would not vectorise.
    const std::uint32_t is_nan = 0u - static_cast<std::uint32_t>(magnitude > kExponentField);
    return (code & ~is_nan) | (nan_code & is_nan);
  }
};

/// Equal to encode(kE4M3, .., nearest, saturate) for all 2^32 inputs; loops over it vectorise.
FP8LAB_HD constexpr std::uint8_t to_e4m3(float value) {
  constexpr NearestCodec kCodec(kE4M3, Overflow::saturate);
  return static_cast<std::uint8_t>(kCodec.encode(value));
}

/// Equal to encode(kE5M2, .., nearest, saturate) for all 2^32 inputs; loops over it vectorise.
FP8LAB_HD constexpr std::uint8_t to_e5m2(float value) {
  constexpr NearestCodec kCodec(kE5M2, Overflow::saturate);
  return static_cast<std::uint8_t>(kCodec.encode(value));
}

FP8LAB_NUMERICS_END
