#include "kernels/pointwise/column_sum.cuh"

#include <cstdint>

#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// Runs for no block as well: adding the empty sum +0 turns -0 into +0, as on the CPU.
__global__ void add_blocks(std::int64_t blocks, std::int64_t cols, const float* partial,
                           float* destination) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  float total = 0.0f;
#pragma unroll 8
  for (std::int64_t block = 0; block < blocks; ++block) {
    total = total + partial[block * cols + col];
  }
  destination[col] = numerics::canonical_nan(destination[col] + total);
}

template <class T>
struct Element {
  Rows<T> matrix;
  __device__ float operator()(std::int64_t row, std::int64_t col) const {
    return matrix.load(row, col);
  }
};

}  // namespace

void add_block_sums(Context& context, const float* partial, std::int64_t blocks,
                    const TensorView& destination) {
  constexpr unsigned kThreads = 128;
  const auto grid = static_cast<unsigned>((destination.cols + kThreads - 1) / kThreads);
  add_blocks<<<grid, kThreads, 0, context.stream()>>>(blocks, destination.cols, partial,
                                                      destination.row<float>(0));
  check_launch("add_block_sums");
}

void run(Context& context, const ops::BiasBackward& op) {
  op.check();
  with_rows(
      [&]<class T>(const Rows<T>& matrix) {
        add_column_sums(context, op.dy.rows, Element<T>{matrix}, op.dbias, "bias_backward");
      },
      op.dy);
}

}  // namespace fp8lab::cuda
