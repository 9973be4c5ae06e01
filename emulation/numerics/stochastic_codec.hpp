// Stochastic rounding into small formats with 32-bit operations and no branch, for loops over many
// elements.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// numerics::encode with Rounding::stochastic as constants of one format. With b discarded bits a
/// magnitude is significand * 2^-b steps of the grid. These are whole steps and a fraction of 32
/// bits; the low b random bits are added to the fraction at its place, and a carry adds one step.
/// With N random bits (encode_few_random_bits) the low N bits are added at the top of the fraction;
/// those below its last place cannot cause a carry.
struct StochasticCodec {
  std::int32_t smallest_field = 0;  ///< FP32 exponent field of the smallest normal number
  std::int32_t discarded = 0;       ///< number of discarded bits, for normal numbers
  std::uint32_t mantissa_bits = 0;
  std::uint32_t max_code = 0, overflow = 0, nan_code = 0;
  std::uint32_t sign_shift = 0;  ///< from bit 31 to the sign of the code
  std::uint32_t negated = 0;     ///< mask of the bits that a minus sign
                                 ///< inverts, all ones for integers
  std::uint32_t zero_sign = 0;   ///< mask of the sign of zero, zero if the format has no -0
  std::uint32_t code_mask = 0;
  std::int32_t few_shift = -1;  ///< 32 - N for N random bits; -1: as many as are discarded

  constexpr StochasticCodec() = default;
  /// `count` random bits as in ElementCast. Precondition: applies(format).
  FP8LAB_HD constexpr StochasticCodec(FormatSpec format, Overflow treatment, int count = 0)
      : smallest_field(127 + format.min_exponent()),
        discarded(23 - format.mantissa_bits),
        mantissa_bits(static_cast<std::uint32_t>(format.mantissa_bits)),
        max_code(format.max_finite_code()),
        overflow(overflow_code(format, treatment)),
        nan_code(format.nan_code()),
        sign_shift(static_cast<std::uint32_t>(32 - format.bits())),
        negated(format.encoding == Encoding::twos_complement ? ~0u : 0u),
        zero_sign(format.has_negative_zero() ? ~0u : 0u),
        code_mask(2u * format.sign_mask() - 1u),
        few_shift(count == 0 ? -1 : 32 - count) {}

  /// Returns true for signed formats of at most 8 bits, floating or integer, whose subnormals are
  /// above those of FP32, so that an FP32 subnormal gives zero.
  static constexpr bool applies(FormatSpec format) {
    const bool has_grid =
        format.encoding == Encoding::floating || format.encoding == Encoding::twos_complement;
    return has_grid && format.bits() <= 8 && format.has_sign && format.has_subnormals &&
           format.min_exponent() - format.mantissa_bits >= -126 + 32 + 2;
  }

  /// Returns encode(format, bits of value, stochastic, treatment, random), or
  /// encode_few_random_bits(format, bits of value, random, count, treatment).
  FP8LAB_HD constexpr std::uint32_t encode(float value, std::uint32_t random) const {
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::int32_t distance = static_cast<std::int32_t>(magnitude >> 23) - smallest_field;
    const std::int32_t above = distance > 0 ? distance : 0;
    const std::int32_t below = discarded + above - distance;
    const std::int32_t left = below < 32 ? 32 - below : 0;
    const std::int32_t right = below < 63 ? below - 32 + left : 31;  // 24 and more give 0
    const std::uint32_t fraction = (significand << left) >> right;
    const std::uint32_t sum = fraction + (random << (few_shift < 0 ? left : few_shift));
    const std::uint32_t carry = sum < fraction ? 1u : 0u;
    const std::uint32_t whole = significand >> (below < 31 ? below : 31);
    std::uint32_t code = whole + carry + (static_cast<std::uint32_t>(above) << mantissa_bits);
    code = code > max_code ? overflow : code;
    // A negative integer is the complement plus one, which includes the sign bit.
    const std::uint32_t minus = (0u - (bits >> 31)) & negated;
    code = ((code ^ minus) - minus) & code_mask;
    const std::uint32_t signed_codes = code != 0 ? ~0u : zero_sign;
    code |= (bits & 0x80000000u & ~minus & signed_codes) >> sign_shift;
    return magnitude > kF32Infinity ? nan_code : code;
  }
};

FP8LAB_NUMERICS_END
