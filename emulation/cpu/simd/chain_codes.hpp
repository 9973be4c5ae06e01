// Codes of exponents and lowest bits of operands for the emulated GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/numerics/host_device.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// FP8 operands in bytes. With e the un-normalised exponent and l the exponent of the lowest set
/// bit of an operand:
///   right exponent e + 143 (zero: 0), left gap 16 - e (zero: 255); the saturating difference is
///     e_a + e_b + 127, the biased FP32 exponent, or 0 for a zero product (e is in [-14, 15]);
///   low l + 16 with the sign in bit 7 (zero: 64 right, 63 left, positive); the sum of two is
///     l_a + l_b + 32 in the lower seven bits and the product's sign in bit 7 (l is in [-16, 15]).
/// The common exponent ("top") is the biased FP32 exponent, at least kFloor. A chain that does not
/// start from zero starts from multiples of 2^-32.
struct Fp8Codes {
  using Lane = std::uint8_t;
  static constexpr int kRightExponent = 143;
  static constexpr int kLeftExponent = 16;
  static constexpr int kLeftZero = 255;
  static constexpr int kLow = 16;
  static constexpr int kRightZeroLow = 64;
  static constexpr int kLeftZeroLow = 63;
  static constexpr int kNegativeLow = 0x80;
  static constexpr std::uint32_t kSplat = 0x01010101u;

  /// Mask of a chain's result: 13 mantissa bits, more than FP16 has. Between groups the lower bits
  /// remain, because the next common exponent is at least that of the accumulator and cuts them.
  static constexpr std::uint32_t kResultMask = ~0x3FFu;

  /// At emax = -19 the grid is 2^-32, and every product is a multiple of it.
  static constexpr int kFloor = 108;
  static constexpr int kExponentBias = 127;  ///< of the common exponent
  /// top + 10 is the exponent of 2^23 grid units. Saturation to 255 turns a lane that could
  /// overflow into NaN, which persists to the end of the chain and causes a recomputation.
  static constexpr int kAnchorOffset = 10;
  /// A product is off the grid when l_a + l_b + 32 < top - 127 - 13 + 32.
  static constexpr int kLimitOffset = 127 + 13 - 32;
  static constexpr int kLimitMax = 63;

  /// E4M3 operands for AMX store 2^(8 e - 3) in BF16 (zero: 0) instead of e. A sum of 32 products
  /// of such powers is less than 2^6 times the largest of them, and its rounding error is far
  /// smaller than that one. So bits 26 to 30 of its FP32 form are the largest e_a + e_b + 15, or 0
  /// without a product (e is in [-6, 8], so no sum reaches the ends of FP32).
  static constexpr std::int32_t power(std::int32_t exponent) {
    return (8 * exponent - 3 + 127) << 7;
  }
  static constexpr int kSumField = 15;
};

/// Counts the negative products off the grid, per lane, in a register.
template <class Lanes>
class LaneCounter {
 public:
  using Code = typename Lanes::Code;
  static constexpr bool kStores = false;  ///< whether results wait in memory to be counted

  /// Call before a group; the argument is the number of its products.
  void clear(int) { counted_ = Lanes::zero(); }
  void add(int, Code low_a, Code low_b, Code limits) {
    counted_ = Lanes::count(counted_, low_a, low_b, limits);
  }
  Code total() const { return counted_; }

 private:
  Code counted_;
};

/// Rearranges codes from column order to the order that pack instructions produce, in which four
/// columns stay together: column j is in lane Lanes::position(j).
template <class Lanes>
inline void arrange_by_four(const typename Lanes::Codes::Lane* columns, std::byte* lanes) {
  constexpr std::size_t kUnit = 4 * sizeof(typename Lanes::Codes::Lane);
  for (int j = 0; j < 4 * Lanes::kFloatLanes; j += 4) {
    std::memcpy(lanes + static_cast<std::size_t>(Lanes::position(j) / 4) * kUnit, columns + j,
                kUnit);
  }
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
