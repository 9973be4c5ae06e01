// Sums over the rows of a matrix in the fixed order of emulation/ops/pointwise/bias.hpp.
#pragma once

#include <cstdint>

#include "emulation/ops/pointwise/bias.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Adds the terms of rows [first, last) to the sums of a group of columns, with the loads
/// of several rows in flight.
template <class Term>
__device__ void add_rows(const Term& term, std::int64_t first, std::int64_t last, std::int64_t col,
                         int count, float (&sums)[kGroup]) {
  using Loaded = typename Term::Loaded;
  constexpr int kTogether = 256 / static_cast<int>(sizeof(Loaded));
  std::int64_t row = first;
  for (; row + kTogether <= last; row += kTogether) {
    Loaded loaded[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) loaded[i] = term.load(row + i, col, count);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) term.add(loaded[i], row + i, sums);
  }
  for (; row < last; ++row) term.add(term.load(row, col, count), row, sums);
}

/// Computes partial (blocks, cols): for each block of kColumnSumBlock rows, the sum of the terms of
/// its rows, ascending from +0. A thread handles a group of columns of a block. Term::load reads
/// the inputs of a row's terms, Term::add adds the terms; Term::is_wide says whether whole groups
/// can be loaded in one access.
template <class Term>
__global__ void column_block_sums(std::int64_t rows, std::int64_t cols, Term term, float* partial) {
  const std::int64_t col =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup;
  if (col >= cols) return;
  const int count = cols - col < kGroup ? static_cast<int>(cols - col) : kGroup;
  for (std::int64_t block = blockIdx.y; block * kColumnSumBlock < rows; block += gridDim.y) {
    const std::int64_t first = block * kColumnSumBlock;
    const std::int64_t last = first + kColumnSumBlock < rows ? first + kColumnSumBlock : rows;
    float sums[kGroup] = {};
    if (term.is_wide() && count == kGroup) {
      add_rows(term, first, last, col, kGroup, sums);
    } else {
      add_rows(term, first, last, col, count, sums);
    }
    for (int i = 0; i < count; ++i) partial[block * cols + col + i] = sums[i];
  }
}

/// Returns the number of blocks of kColumnSumBlock rows.
inline std::int64_t column_sum_blocks(std::int64_t rows) {
  return (rows + kColumnSumBlock - 1) / kColumnSumBlock;
}

/// Returns the context's workspace, with room for `partial`.
inline float* column_sum_workspace(Context& context, std::int64_t rows, std::int64_t cols) {
  const auto count = static_cast<std::size_t>(column_sum_blocks(rows) * cols);
  return static_cast<float*>(context.workspace(count * sizeof(float)));
}

/// Computes destination (1, cols) f32 += the column sums of partial (blocks,
/// cols), ascending from +0.
void add_block_sums(Context& context, const float* partial, std::int64_t blocks,
                    const TensorView& destination);

/// Computes destination (1, cols) f32 += the column sums of a Term over `rows` rows.
/// Uses the context's workspace.
template <class Term>
void add_column_sums(Context& context, std::int64_t rows, const Term& term,
                     const TensorView& destination, const char* name) {
  const std::int64_t cols = destination.cols;
  if (cols == 0) return;
  constexpr unsigned kThreads = 32;
  constexpr std::int64_t kColsOfBlock = kThreads * kGroup;
  const std::int64_t blocks = column_sum_blocks(rows);
  float* const partial = column_sum_workspace(context, rows, cols);
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>((cols + kColsOfBlock - 1) / kColsOfBlock),
                    grid_size(blocks, kGridYLimit));
    column_block_sums<<<grid, kThreads, 0, context.stream()>>>(rows, cols, term, partial);
    check_launch(name);
  }
  add_block_sums(context, partial, blocks, destination);
}

}  // namespace fp8lab::cuda
