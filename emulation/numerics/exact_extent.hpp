// Error bounds of FP64 sums that stand for exact ones.
//
// Products of two FP32 values are exact in FP64. An FP64 sum of K such products, in any order, has
// an error of at most K 2^-53 sum |a b|, and of 0 if all products are multiples of one unit and
// |sum| stays within 2^53 units. If both ends of that error interval round to the same FP32 number,
// that number is the exact sum rounded once. Other sums, such as long sums that cancel, are
// computed in twice the precision, with an error bound of their own; ExactSum computes the rest,
// such as ties.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Describes some elements of one row, to bound the error of a sum of their products.
struct ExactExtent {
  int bits = 0;       ///< from the highest to the lowest set bit over all elements
  double norm = 0.0;  ///< at least the square root of the sum of squares
};

/// Returns the value of the lowest set bit of an FP32 magnitude, given as its bits; 0 for 0.
FP8LAB_HD constexpr float lowest_bit(std::uint32_t magnitude) {
  constexpr std::uint32_t kMantissa = 0x7FFFFFu;
  const std::uint32_t rest = (magnitude & kMantissa) == 0 ? 0u : magnitude & (magnitude - 1u);
  return bits_float(magnitude) - bits_float(rest);
}

/// Returns the extent of FP32 values whose largest magnitude is `top` and whose lowest set bit has
/// the value `bottom`; `squares` is the FP64 sum of fewer than 2^30 squares, in any order. With
/// infinities or NaN the sum of products itself is infinite or NaN.
FP8LAB_HD inline ExactExtent exact_extent(float top, float bottom, double squares) {
  ExactExtent extent;
  extent.norm = std::sqrt(squares) * (1.0 + 0x1p-20);  // covers the rounding of `squares`
  const bool finite = top > 0.0f && top <= 0x1.fffffep+127f;
  extent.bits = finite ? std::ilogb(top) - std::ilogb(bottom) + 1 : 0;
  return extent;
}

/// Returns an upper bound of |sum - exact sum| for the FP64 sum of `k` products of two such rows.
FP8LAB_HD inline double exact_error_bound(const ExactExtent& a, const ExactExtent& b,
                                          std::int64_t k) {
  constexpr int kFp64Bits = 53;
  int growth = 0;  // bits of k - 1
  while (growth < 63 && (k - 1) >> growth != 0) ++growth;
  if (a.bits + b.bits + growth <= kFp64Bits) return 0.0;
  // Twice the theoretical bound, to cover the rounding of the interval's ends.
  return 2.0 * static_cast<double>(k + 1) * 0x1p-53 * a.norm * b.norm;
}

/// A sum in twice the precision of FP64 (Sum2 of Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26,
/// 2005, of products that are exact). Of infinities and NaN, `sum` is the sum and `rest` is NaN.
struct DoubledSum {
  double sum = 0.0, rest = 0.0;

  /// Adds `value`; what FP64 leaves of it goes to `rest` (Knuth's TwoSum).
  FP8LAB_HD constexpr void add(double value) {
    const double before = sum;
    sum = before + value;
    const double part = sum - before;
    rest += (before - (sum - part)) + (value - part);
  }
  FP8LAB_HD constexpr void add(const DoubledSum& other) {
    add(other.sum);
    rest += other.rest;
  }
  /// Returns an upper bound of the error of sum + rest, for `k` products summed in at most 32
  /// parts: (k + 32)^2 2^-105 sum |a b| at most. `bound` is 2 (k + 1) 2^-53 sum |a b| at least.
  FP8LAB_HD constexpr double error(std::int64_t k, double bound) const {
    const double value = sum + rest;
    return 16.0 * static_cast<double>(k + 32) * 0x1p-52 * bound +
           0x1p-51 * (value < 0 ? -value : value);
  }
};

FP8LAB_NUMERICS_END
