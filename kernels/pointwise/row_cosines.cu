#include <cstdint>

#include "kernels/pointwise/warp_rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class A, class B>
__device__ float warp_dot(std::int64_t row, std::int64_t cols, const Rows<A>& a, const Rows<B>& b) {
  return warp_tree_sum(cols, [&](std::int64_t c) { return a.load(row, c) * b.load(row, c); });
}

template <class A, class B>
__global__ void __launch_bounds__(kWarpRowThreads)
    row_cosines(std::int64_t rows, std::int64_t cols, Rows<A> a, Rows<B> b, float* cosines) {
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    const float lengths =
        __fsqrt_rn(warp_dot(row, cols, a, a)) * __fsqrt_rn(warp_dot(row, cols, b, b));
    const float product = fabsf(warp_dot(row, cols, a, b));
    const float cosine = lengths <= 0.0f ? 0.0f : product / lengths;
    if (lane_id() == 0) cosines[row] = numerics::canonical_nan(cosine);
  }
}

}  // namespace

void run(Context& context, const ops::RowCosines& op) {
  op.check();
  if (op.a.rows == 0) return;
  with_rows(
      [&](const auto& a, const auto& b) {
        row_cosines<<<warp_row_blocks(context, op.a.rows), kWarpRowThreads, 0, context.stream()>>>(
            op.a.rows, op.a.cols, a, b, op.cosines.row<float>(0));
        check_launch("row_cosines");
      },
      op.a, op.b);
}

}  // namespace fp8lab::cuda
