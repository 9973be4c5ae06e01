// Stochastic rounding with a few random bits, as in the conversion instructions of Blackwell.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Returns the code of an FP32 value, rounded stochastically by the low `count` bits of `random`
/// (1 <= count <= 32). These bits are added to the upper `count` discarded bits of the significand,
/// and a carry rounds away from zero: the upper neighbour has probability
/// floor(2^count (|x| - lo) / (hi - lo)) / 2^count. Overflow, zero and NaN as in `encode`.
///
/// This is cvt.rs of PTX ISA 8.7 ("cvt", rbits) with count 8 for e2m1x4 and 16 for e4m3x4, e5m2x4,
/// e2m3x4 and e3m2x4. The ISA says which bits an element receives, not their place for results that
/// are subnormal: the place is assumed.
FP8LAB_HD constexpr std::uint32_t encode_few_random_bits(FormatSpec format, std::uint32_t f32_bits,
                                                         std::uint32_t random, int count,
                                                         Overflow overflow = Overflow::saturate) {
  const int exponent = normalize_f32(f32_bits & 0x7FFFFFFFu).exponent;
  const int below = exponent < format.min_exponent() ? format.min_exponent() - exponent : 0;
  const int discarded = 23 - format.mantissa_bits + below;
  // Stochastic rounding reads the low `discarded` bits of its word, or all 32 at the top.
  const int width = discarded < 32 ? discarded : 32;
  const std::uint32_t bits = count < 32 ? random & ((1u << count) - 1u) : random;
  const std::uint32_t word = width >= count ? bits << (width - count) : bits >> (count - width);
  return encode(format, f32_bits, Rounding::stochastic, overflow, word);
}

FP8LAB_NUMERICS_END
