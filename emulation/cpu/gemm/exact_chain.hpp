// Exact sums of products by FP64 arithmetic that proves its own rounding
// (numerics/exact_extent.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/numerics/exact_extent.hpp"

namespace fp8lab::cpu {

/// Returns the extent of `k` FP32 values.
numerics::ExactExtent exact_extent(const float* values, std::int64_t k);

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
