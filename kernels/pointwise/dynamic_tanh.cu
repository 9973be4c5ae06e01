#include <cstdint>

#include "emulation/numerics/dynamic_tanh.hpp"
#include "kernels/pointwise/trained_numbers.cuh"
#include "kernels/runtime/cuda_handles.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class T, class X, class Out>
struct DynamicTanh {
  const T* alpha;
  Rows<X> x;
  Rows<Out> out;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    const float factor = widen(*alpha);
    float values[kGroup], result[kGroup];
    x.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i) result[i] = numerics::dynamic_tanh(values[i], factor);
    out.store_group(row, col, count, result);
  }
};

/// Adds up the terms of a row before dx, which may be x or dout, is written.
template <class T, class X, class DOut, class Dx>
__global__ void __launch_bounds__(kWarpRowThreads)
    dynamic_tanh_backward(std::int64_t rows, std::int64_t cols, const T* alpha, Rows<X> x,
                          Rows<DOut> dout, Rows<Dx> dx, float* terms, std::int64_t terms_stride) {
  const float factor = widen(*alpha);
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    if (terms != nullptr) {
      const float by_alpha = warp_tree_sum(cols, [&](std::int64_t c) {
        return numerics::dynamic_tanh_slopes(x.load(row, c), factor, dout.load(row, c)).by_alpha;
      });
      if (lane_id() == 0) terms[row * terms_stride] = numerics::canonical_nan(by_alpha);
    }
    __syncwarp();
    store_gradient(x, dout, dx, row, cols, [&](float value, float d) {
      return numerics::dynamic_tanh_slopes(value, factor, d).by_x;
    });
  }
}

}  // namespace

void run(Context& context, const ops::DynamicTanhForward& op) {
  op.check();
  with_number(op.alpha, [&]<class T>() {
    with_rows(
        [&]<class X, class Out>(const Rows<X>& x, const Rows<Out>& out) {
          const DynamicTanh<T, X, Out> body{op.alpha.row<const T>(0), x, out};
          launch_groups(context, op.out.rows, op.out.cols, body, "dynamic_tanh_forward");
        },
        op.x, op.out);
  });
}

void run(Context& context, const ops::DynamicTanhBackward& op) {
  op.check();
  if (op.dout.rows == 0) return;
  with_number(op.alpha, [&]<class T>() {
    with_rows(
        [&](const auto& x, const auto& dout, const auto& dx) {
          dynamic_tanh_backward<<<warp_row_blocks(context, op.dout.rows), kWarpRowThreads, 0,
                                  context.stream()>>>(
              op.dout.rows, op.dout.cols, op.alpha.row<const T>(0), x, dout, dx,
              op.terms.empty() ? nullptr : op.terms.row<float>(0), op.terms.row_stride);
          check_launch("dynamic_tanh_backward");
        },
        op.x, op.dout, op.dx);
  });
}

}  // namespace fp8lab::cuda
