// Sums over the rows of a matrix in the fixed order of emulation/ops/bias.hpp.
#pragma once

#include <cstdint>

#include "emulation/ops/bias.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// partial (blocks, cols): for each block of kColumnSumBlock rows, the sum of term(row, col)
/// ascending from +0. A thread takes one column of a block.
template <class Term>
__global__ void column_block_sums(std::int64_t rows, std::int64_t cols, Term term, float* partial) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  for (std::int64_t block = blockIdx.y; block * kColumnSumBlock < rows; block += gridDim.y) {
    const std::int64_t first = block * kColumnSumBlock;
    const std::int64_t last = first + kColumnSumBlock < rows ? first + kColumnSumBlock : rows;
    float sum = 0.0f;
#pragma unroll 8
    for (std::int64_t row = first; row < last; ++row) sum = sum + term(row, col);
    partial[block * cols + col] = sum;
  }
}

/// destination (1, cols) f32 += the sums of the columns of partial (blocks, cols), ascending from
/// +0.
void add_block_sums(Context& context, const float* partial, std::int64_t blocks,
                    const TensorView& destination);

/// destination (1, cols) f32 += column sums of term(row, col), a device function object, over
/// `rows` rows. Uses the context's workspace.
template <class Term>
void add_column_sums(Context& context, std::int64_t rows, const Term& term,
                     const TensorView& destination, const char* name) {
  const std::int64_t cols = destination.cols;
  if (cols == 0) return;
  constexpr unsigned kThreads = 128;
  const std::int64_t blocks = (rows + kColumnSumBlock - 1) / kColumnSumBlock;
  auto* partial = static_cast<float*>(
      context.workspace(static_cast<std::size_t>(blocks * cols) * sizeof(float)));
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>((cols + kThreads - 1) / kThreads),
                    grid_size(blocks, kGridYLimit));
    column_block_sums<<<grid, kThreads, 0, context.stream()>>>(rows, cols, term, partial);
    check_launch(name);
  }
  add_block_sums(context, partial, blocks, destination);
}

}  // namespace fp8lab::cuda
