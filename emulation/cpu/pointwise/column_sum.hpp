// Sums over the rows of a matrix in the fixed order of operations.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {

/// Columns that one thread sums at a time; no effect on bits.
inline constexpr std::int64_t kColumnSumChunk = 64;

/// Computes destination (1, cols) f32 += column_sum over `rows` rows. add_row(row, first, count,
/// sums) adds columns [first, first + count) of one row to `sums`.
template <class AddRow>
void add_column_sums(const PointwiseKernels& kernels, std::int64_t rows,
                     const TensorView& destination, const AddRow& add_row) {
  const std::int64_t cols = destination.cols;
  const std::int64_t chunks = (cols + kColumnSumChunk - 1) / kColumnSumChunk;
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = chunk * kColumnSumChunk;
    const std::int64_t count = std::min(kColumnSumChunk, cols - first);
    float total[kColumnSumChunk] = {};
    for (std::int64_t block = 0; block < rows; block += kColumnSumBlock) {
      float sums[kColumnSumChunk] = {};
      const std::int64_t end = std::min(rows, block + kColumnSumBlock);
      for (std::int64_t row = block; row < end; ++row) add_row(row, first, count, sums);
      kernels.add(total, sums, count, total);
    }
    float* result = destination.row<float>(0) + first;
    kernels.add(result, total, count, result);
    kernels.canonical(result, count, result);
  }
}

}  // namespace fp8lab::cpu
