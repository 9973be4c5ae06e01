// Packed form of wide operands of the emulated GEMM.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Packed exponents of wide operands. With e the un-normalised exponent of an operand, the code of
/// a right operand is e + 194 (zero: 0), and the gap of a left operand is 61 - e (zero: 255), both
/// in bytes. The saturating difference is e_a + e_b + 133, or 0 for a zero product and for products
/// below 2^-133. A group's sum begins with codes of at least its floor.
struct WideCodes {
  static constexpr int kMostExponent = 61;
  static constexpr int kRight = 194;
  static constexpr int kLeftZero = 255;
  static constexpr int kExponentBias = kRight - kMostExponent;

  /// Offset from the code of an exponent to the exponent field of FP64.
  static constexpr int kField = 1023 - kExponentBias;
  /// Offset from the FP64 exponent field of emax to that of 2^52 grid units 2^(emax - 25).
  static constexpr int kAnchorOffset = 52 - 25;
  /// From emax = 121 on a result could overflow FP32: such lanes become NaN and are recomputed.
  static constexpr int kTooLarge = 1023 + 121;
  /// Results of groups with an emax of at least -101 are zero or normal numbers of FP32.
  static constexpr int kNormal = 1023 - 126 + 25;
  static constexpr int kNaN = 2047 - kAnchorOffset;
  /// FP64 exponent fields of the least normal FP32 and FP16 numbers.
  static constexpr int kLeastF32 = 1023 - 126;
  static constexpr int kLeastF16 = 1023 - 14;

  /// Left operands and accumulators are multiplied by this, see gemm_kernels.hpp.
  static constexpr double kLonger = 1.0 + 0x1p-30;
  /// Stands for zero: a product with it is smaller than any unit and has a sign, which is counted.
  static constexpr double kZero = 0x1p-400;
};

/// A packed left or right operand. Numbers above 2^kMostExponent, infinities and NaN are
/// packed as NaN, whose lower bits hold what the scalar reference needs: the exponent and the
/// upper half of the FP64 value.
struct WideValue {
  static constexpr std::uint64_t kNaN = std::uint64_t{0x7FF8} << 48;
  static constexpr int kExponentBias = 512;

  static std::uint64_t escape(double value, int exponent) {
    return kNaN | static_cast<std::uint64_t>(exponent + kExponentBias) << 32 |
           numerics::double_bits(value) >> 32;
  }
  static bool is_escaped(std::uint64_t bits) { return bits >> 48 == kNaN >> 48; }
  /// Returns the operand without the factor kLonger.
  static double value(std::uint64_t bits) {
    return numerics::bits_double(is_escaped(bits) ? bits << 32 : bits >> 32 << 32);
  }
  static int exponent(std::uint64_t bits, int otherwise) {
    const auto code = static_cast<int>(bits >> 32 & 0xFFFFu);
    return is_escaped(bits) ? code - kExponentBias : otherwise;
  }
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
