// Products of FP32 values in FP64.
#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// d (rows_a, rows_b) = A B^T of the FP32 values a (rows_a, k) and b (rows_b, k), all row-major and
/// without gaps: each element by FP64 fused multiply-adds with k ascending from +0, so that the
/// bits depend on neither threads nor processor. All products are exact, and the error of a sum is
/// at most k 2^-53 sum |a b|.
void f64_product(const float* a, std::int64_t rows_a, const float* b, std::int64_t rows_b,
                 std::int64_t k, double* d);

}  // namespace fp8lab::cpu
