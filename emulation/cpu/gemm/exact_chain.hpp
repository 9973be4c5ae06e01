// Exact sums of products by FP64 arithmetic that proves its own rounding.
//
// An FP64 sum of K products of FP32 values, which are exact, is off by at most K 2^-53 sum |a b|,
// and by nothing where all products are multiples of one unit and |sum| stays within 2^53 of them.
// If both ends of that interval round to the same FP32 number, that is the exact sum rounded once.
// The others, long sums that cancel among them, are summed in twice the precision, with a bound of
// its own, and what is left, such as ties, by numerics::ExactSum.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab::cpu {

/// Of some elements of one row: what bounds the error of a sum of their products.
struct ExactExtent {
  int bits = 0;       ///< from the highest to the lowest set bit of all of them
  double norm = 0.0;  ///< at least the square root of the sum of squares
};

/// The extent of `k` FP32 values. Infinities and NaN make the sum itself infinite or NaN.
ExactExtent exact_extent(const float* values, std::int64_t k);

/// An upper bound of |sum - exact sum| for the FP64 sum of `k` products of two such rows.
double exact_error_bound(const ExactExtent& a, const ExactExtent& b, std::int64_t k);

/// One row of exact sums: out[j] is the exact sum of a[l] * b[l * stride + j] over l < k, rounded
/// to FP32 to nearest even, an exact zero being +0 and NaN canonical, where sums[j] is that sum in
/// FP64 and errors[j] its bound. a and b hold FP32 values.
struct ExactRow {
  const double* a;
  const double* b;
  std::int64_t stride, k, columns;
  const double* sums;
  const double* errors;
};
void round_exactly(const ExactRow& row, float* out);

}  // namespace fp8lab::cpu
