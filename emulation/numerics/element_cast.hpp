// The cast of one scaled value to its code: every choice of a quantizer that concerns the element.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/few_random_bits.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Parameters of a cast from FP32 (specification.md, "Formats and codes").
struct ElementCast {
  FormatSpec format{};
  Rounding rounding = Rounding::nearest;
  Overflow overflow = Overflow::saturate;
  /// For Rounding::stochastic: the number of random bits, 1 to 32, as in encode_few_random_bits. 0:
  /// as many as are discarded.
  int random_bits = 0;
  /// The format to which the value is rounded first; kFP32, its own format, is no rounding.
  FormatSpec via = kFP32;

  constexpr bool operator==(const ElementCast&) const = default;
  /// Copies the constant, because device code has no references to constants of the host.
  FP8LAB_HD constexpr bool is_direct() const { return via == FormatSpec{kFP32}; }
  FP8LAB_HD constexpr bool is_random() const { return rounding == Rounding::stochastic; }
};

/// Returns FP32 bits rounded to `via`: to nearest, ties to even, subnormals kept, overflow to
/// infinity, as conversion instructions round to FP16 and BF16.
FP8LAB_HD constexpr std::uint32_t rounded_via(FormatSpec via, std::uint32_t f32_bits) {
  if ((f32_bits & 0x7FFFFFFFu) > kF32Infinity) return kF32NaN;
  if (via == FormatSpec{kBF16}) return std::uint32_t{to_bf16(bits_float(f32_bits))} << 16;
  return decode_bits(via, encode(via, f32_bits, Rounding::nearest, Overflow::special));
}

/// Returns the code of an FP32 value: first rounded_via, unless the cast is direct, then encode or
/// encode_few_random_bits. Only the second rounding uses `random`, the element's random word.
FP8LAB_HD_INLINE constexpr std::uint32_t encode(const ElementCast& cast, std::uint32_t f32_bits,
                                                std::uint32_t random = 0) {
  const std::uint32_t bits = cast.is_direct() ? f32_bits : rounded_via(cast.via, f32_bits);
  if (cast.is_random() && cast.random_bits != 0) {
    return encode_few_random_bits(cast.format, bits, random, cast.random_bits, cast.overflow);
  }
  return encode(cast.format, bits, cast.rounding, cast.overflow, random);
}

FP8LAB_NUMERICS_END
