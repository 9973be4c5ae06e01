// Exact sums of products by FP64 arithmetic that proves its own rounding.
//
// Products of two FP32 values are exact in FP64. An FP64 sum of K such products has an error
// of at most K 2^-53 sum |a b|, and of 0 if all products are multiples of one unit and |sum|
// stays within 2^53 units. If both ends of that error interval round to the same FP32 number,
// that number is the exact sum rounded once. Other sums, such as long sums that cancel, are
// computed in twice the precision, with an error bound of their own; numerics::ExactSum computes
// the rest, such as ties.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab::cpu {

/// Describes some elements of one row, to bound the error of a sum of their products.
struct ExactExtent {
  int bits = 0;       ///< from the highest to the lowest set bit over all elements
  double norm = 0.0;  ///< at least the square root of the sum of squares
};

/// Returns the extent of `k` FP32 values. With infinities or NaN the sum itself is infinite or NaN.
ExactExtent exact_extent(const float* values, std::int64_t k);

/// Returns an upper bound of |sum - exact sum| for the FP64 sum of `k` products of two such rows.
double exact_error_bound(const ExactExtent& a, const ExactExtent& b, std::int64_t k);

/// Arguments for one row of exact sums: out[j] is the exact sum of a[l] * b[l * stride + j] over
/// l < k, rounded to FP32 to nearest even. An exact zero is +0 and NaN is canonical. sums[j] is
/// that sum in FP64 and errors[j] its error bound. a and b hold FP32 values.
struct ExactRow {
  const double* a;
  const double* b;
  std::int64_t stride, k, columns;
  const double* sums;
  const double* errors;
};
void round_exactly(const ExactRow& row, float* out);

}  // namespace fp8lab::cpu
