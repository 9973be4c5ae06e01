#include "kernels/pointwise/column_sum.cuh"

#include <cstdint>

#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr unsigned kSumThreads = 64;

/// Also runs for zero blocks: adding the empty sum +0 turns -0 into +0, as on the CPU.
__global__ void __launch_bounds__(kSumThreads, 8)
    add_blocks(std::int64_t blocks, std::int64_t cols, const float* partial, float* destination) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  float total = 0.0f;
#pragma unroll 32
  for (std::int64_t block = 0; block < blocks; ++block) {
    total = total + partial[block * cols + col];
  }
  destination[col] = numerics::canonical_nan(destination[col] + total);
}

template <class T>
struct Elements {
  struct Loaded {
    T bits[kGroup];
  };
  Rows<T> matrix;

  __device__ bool is_wide() const { return matrix.wide; }
  __device__ Loaded load(std::int64_t row, std::int64_t col, int count) const {
    Loaded loaded;
    matrix.load_bits(row, col, count, loaded.bits);
    return loaded;
  }
  __device__ void add(const Loaded& loaded, std::int64_t, float (&sums)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sums[i] = sums[i] + widen(loaded.bits[i]);
  }
};

}  // namespace

void add_block_sums(Context& context, const float* partial, std::int64_t blocks,
                    const TensorView& destination) {
  const auto grid = static_cast<unsigned>((destination.cols + kSumThreads - 1) / kSumThreads);
  add_blocks<<<grid, kSumThreads, 0, context.stream()>>>(blocks, destination.cols, partial,
                                                         destination.row<float>(0));
  check_launch("add_block_sums");
}

void run(Context& context, const ops::BiasBackward& op) {
  op.check();
  with_rows(
      [&]<class T>(const Rows<T>& matrix) {
        add_column_sums(context, op.dy.rows, Elements<T>{matrix}, op.dbias, "bias_backward");
      },
      op.dy);
}

}  // namespace fp8lab::cuda
