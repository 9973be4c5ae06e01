// Logarithmic number formats: a code is a sign and a fixed-point base-2 logarithm.
#pragma once

#include <cstdint>

#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Finest logarithmic step of codes that represent BF16 numbers: neighbouring powers of 2^(1/64)
/// still round to different numbers. Finer steps represent FP32 numbers.
inline constexpr int kMaxLogarithmBits = 6;
inline constexpr int kMaxFineLogarithmBits = 11;

/// Returns 2^(i/64) in units of 2^-7, to nearest: the significand of a BF16 number; 0 <= i < 64.
FP8LAB_HD constexpr std::uint32_t bf16_power(std::uint32_t i) {
  constexpr std::uint8_t kPowers[64] = {
      128, 129, 131, 132, 134, 135, 137, 138, 140, 141, 143, 144, 146, 147, 149, 151,
      152, 154, 156, 157, 159, 161, 162, 164, 166, 168, 170, 171, 173, 175, 177, 179,
      181, 183, 185, 187, 189, 191, 193, 195, 197, 200, 202, 204, 206, 208, 211, 213,
      215, 218, 220, 222, 225, 227, 230, 232, 235, 237, 240, 243, 245, 248, 251, 253};
  return kPowers[i];
}

/// Returns the smallest 24-bit significand that is at least 2^(i/128); 0 <= i < 128. For odd i this
/// is where logarithms in steps of 1/64 round up; the power is irrational, so there are no ties.
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

/// Returns 2^(i/4096) in units of 2^-62, with an error below 2^-36 of it; 0 <= i < 4096. Rounded to
/// 24 bits, to nearest or up, it equals the power rounded in the same way.
FP8LAB_HD constexpr std::uint64_t fine_power(std::uint32_t i) {
  /// 2^(i/64) in units of 2^-62.
  constexpr std::uint64_t kPowers[64] = {
      0x4000000000000000, 0x40B268F9DE0183BA, 0x4166C34C5615D0EC, 0x421D1461D66F2023,
      0x42D561B3E6243D8A, 0x438FB0CB4F468808, 0x444C0740496D4294, 0x450A6ABAA4B77ECD,
      0x45CAE0F1F545EB73, 0x468D6FADBF2DD4F3, 0x47521CC5A2E6A9E0, 0x4818EE218A3358EE,
      0x48E1E9B9D588E19B, 0x49AD159789F37496, 0x4A7A77D47F7B84B1, 0x4B4A169B900C2D00,
      0x4C1BF828C6DC54B8, 0x4CF022C9905BFD32, 0x4DC69CDCEAA72A9C, 0x4E9F6CD3967FDBA8,
      0x4F7A993048D088D7, 0x50582887DCB8A7E1, 0x513821818624B40C, 0x521A8AD704F3404F,
      0x52FF6B54D8A89C75, 0x53E6C9DA74B29AB5, 0x54D0AD5A753E077C, 0x55BD1CDAD49F699C,
      0x56AC1F752150A563, 0x579DBC56B48521BA, 0x5891FAC0E95612C8, 0x5988E20954889245,
      0x5A827999FCEF3242, 0x5B7EC8F19468BBC9, 0x5C7DD7A3B17DCF75, 0x5D7FAD59099F22FE,
      0x5E8451CFAC061B5F, 0x5F8BCCDB3D398841, 0x6096266533384A2B, 0x61A3666D124BB204,
      0x62B39508AA836D6F, 0x63C6BA6455DCD8AE, 0x64DCDEC3371793D1, 0x65F60A7F79393E2E,
      0x6712460A8FC24072, 0x683199ED779592CA, 0x69540EC8F895722D, 0x6A79AD55E7F6FD10,
      0x6BA27E656B4EB57A, 0x6CCE8AE13C57EBDB, 0x6DFDDBCBED791BAB, 0x6F307A412F074892,
      0x70666F76154A7089, 0x719FC4B95F452D29, 0x72DC8373BE41A454, 0x741CB5281E25EE34,
      0x75606373EE921C97, 0x76A7980F6CCA15C2, 0x77F25CCDEE6D7AE6, 0x7940BB9E2CFFD89D,
      0x7A92BE8A92436616, 0x7BE86FB985689DDC, 0x7D41D96DB915019D, 0x7E9F06067A4360BA};
  /// 2^(i/4096) - 1 in units of 2^-38; the 60th is rounded up, because 2^(2491/4096) is 8e-7 of the
  /// last place above a number of 24 bits.
  constexpr std::uint32_t kSteps[64] = {
      0x00000000, 0x02C5D7C0, 0x058BCE41, 0x0851E384, 0x0B18178C, 0x0DDE6A58, 0x10A4DBEB,
      0x136B6C45, 0x16321B68, 0x18F8E956, 0x1BBFD610, 0x1E86E197, 0x214E0BEC, 0x24155511,
      0x26DCBD07, 0x29A443CF, 0x2C6BE96B, 0x2F33ADDC, 0x31FB9124, 0x34C39343, 0x378BB43C,
      0x3A53F40E, 0x3D1C52BD, 0x3FE4D049, 0x42AD6CB3, 0x457627FD, 0x483F0228, 0x4B07FB36,
      0x4DD11327, 0x509A49FD, 0x53639FBA, 0x562D145F, 0x58F6A7ED, 0x5BC05A65, 0x5E8A2BC9,
      0x61541C1B, 0x641E2B5B, 0x66E8598A, 0x69B2A6AB, 0x6C7D12BE, 0x6F479DC6, 0x721247C2,
      0x74DD10B5, 0x77A7F8A0, 0x7A72FF84, 0x7D3E2563, 0x80096A3E, 0x82D4CE16, 0x85A050EC,
      0x886BF2C2, 0x8B37B39A, 0x8E039375, 0x90CF9253, 0x939BB037, 0x9667ED21, 0x99344913,
      0x9C00C40F, 0x9ECD5E15, 0xA19A1728, 0xA466EF48, 0xA733E676, 0xAA00FCB4, 0xACCE3204,
      0xAF9B8667};
  const std::uint64_t power = kPowers[i >> 6];
  return power + (((power >> 32) * kSteps[i & 63u]) >> 6);
}

/// Returns the 24-bit significand of the value whose logarithm has this
/// fraction, in steps of 2^-bits.
FP8LAB_HD constexpr std::uint32_t logarithm_significand(int bits, std::uint32_t fraction) {
  if (bits <= kMaxLogarithmBits) return bf16_power(fraction << (kMaxLogarithmBits - bits)) << 16;
  return static_cast<std::uint32_t>((fine_power(fraction << (12 - bits)) + (1ull << 38)) >> 39);
}

/// Returns the smallest significand whose logarithm is nearer to the step
/// after `fraction` than to it.
FP8LAB_HD constexpr std::uint32_t logarithm_threshold(int bits, std::uint32_t fraction) {
  if (bits <= kMaxLogarithmBits) {
    return significand_of_power((2u * fraction + 1u) << (kMaxLogarithmBits - bits));
  }
  const std::uint64_t power = fine_power((2u * fraction + 1u) << (11 - bits));
  return static_cast<std::uint32_t>((power + (1ull << 39) - 1u) >> 39);
}

/// Returns the FP32 bits of the magnitude with code k: 0 for k = 0, else
/// 2^(k / 2^mantissa_bits - bias) rounded to nearest BF16, or to FP32 with more than
/// kMaxLogarithmBits.
FP8LAB_HD constexpr std::uint32_t decode_logarithm(FormatSpec format, std::uint32_t k) {
  if (k == 0) return 0;
  const std::uint32_t fraction = k & ((1u << format.mantissa_bits) - 1u);
  const std::uint32_t significand = logarithm_significand(format.mantissa_bits, fraction);
  const int exponent = static_cast<int>(k >> format.mantissa_bits) - format.bias;
  return (static_cast<std::uint32_t>(exponent + 127) << 23) | (significand & 0x7FFFFFu);
}

/// Returns whether |x| = significand * 2^(exponent - 23), between the neighbours k and k + 1, is
/// rounded up, with probability (|x| - lo) / (hi - lo), a multiple of 2^-32 rounded up.
FP8LAB_HD constexpr bool logarithm_rounds_up(FormatSpec format, std::uint32_t k,
                                             std::uint32_t significand, int exponent,
                                             std::uint32_t random_bits) {
  const std::uint32_t lo = decode_logarithm(format, k);
  const std::uint32_t hi = decode_logarithm(format, k + 1);
  // In units of the last place of x, whose binade is that of lo; hi may be in the next one.
  const std::uint32_t lo_significand = (lo & 0x7FFFFFu) | 0x800000u;
  const std::uint32_t hi_significand = (hi & 0x7FFFFFu) | 0x800000u;
  const int above = static_cast<int>(hi >> 23) - 127 - exponent;
  const std::uint64_t part = significand - lo_significand;
  const std::uint64_t whole = (std::uint64_t{hi_significand} << above) - lo_significand;
  return ((std::uint64_t{random_bits} * whole) >> 32) < part;
}

/// Returns the magnitude code of |x| = significand * 2^(exponent - 23), with
/// 2^23 <= significand < 2^24, or 0.
///
/// LNS-Madam (arXiv:2106.13914): the nearest rule rounds log2 |x|, exactly; toward_zero takes the
/// largest value not above |x|, stochastic weighs the two neighbours by distance. Zero has the
/// smallest code, k = 0, which the paper leaves open; all other values are at least code 1, so that
/// no weight is lost to zero. Larger values saturate.
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
  // Finds by bisection the last step of the octave that is below x.
  std::uint32_t fraction = 0, end = to_nearest ? 1u << bits : (1u << bits) - 1u;
  while (fraction < end) {
    const std::uint32_t middle = (fraction + end) / 2u;
    const bool is_above = significand >= (to_nearest ? logarithm_threshold(bits, middle)
                                                     : logarithm_significand(bits, middle + 1u));
    fraction = is_above ? middle + 1u : fraction;
    end = is_above ? end : middle;
  }
  std::uint32_t k = (static_cast<std::uint32_t>(octave) << bits) + fraction;
  if (rounding == Rounding::stochastic && k >= 1 && k < largest &&
      logarithm_rounds_up(format, k, significand, exponent, random_bits)) {
    ++k;
  }
  return k < 1 ? 1 : k > largest ? largest : k;
}

FP8LAB_NUMERICS_END
