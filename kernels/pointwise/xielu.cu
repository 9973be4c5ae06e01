#include <cstdint>

#include "emulation/numerics/xielu.hpp"
#include "kernels/pointwise/trained_numbers.cuh"
#include "kernels/runtime/cuda_handles.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// The trained numbers, in the type of weights.
template <class T>
struct Numbers {
  const T *p, *n;

  __device__ numerics::XieluFactors factors() const {
    return numerics::xielu_factors(widen(*p), widen(*n));
  }
};

template <class T>
Numbers<T> numbers_of(const TensorView& p, const TensorView& n) {
  return {p.row<T>(0), n.row<T>(0)};
}

template <class T, class X, class Out>
struct Xielu {
  Numbers<T> numbers;
  Rows<X> x;
  Rows<Out> out;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    const numerics::XieluFactors factors = numbers.factors();
    float values[kGroup], result[kGroup];
    x.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i) result[i] = numerics::xielu(values[i], factors);
    out.store_group(row, col, count, result);
  }
};

/// Adds up the terms of a row before dx, which may be x or dout, is written.
template <class T, class X, class DOut, class Dx>
__global__ void __launch_bounds__(kWarpRowThreads)
    xielu_backward(std::int64_t rows, std::int64_t cols, Numbers<T> numbers, Rows<X> x,
                   Rows<DOut> dout, Rows<Dx> dx, float* terms, std::int64_t terms_stride) {
  const numerics::XieluFactors factors = numbers.factors();
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    const auto term = [&](std::int64_t c) {
      return numerics::xielu_terms(x.load(row, c), dout.load(row, c));
    };
    if (terms != nullptr) {
      const float by_p = warp_tree_sum(cols, [&](std::int64_t c) { return term(c).p; });
      const float by_n = warp_tree_sum(cols, [&](std::int64_t c) { return term(c).n; });
      if (lane_id() == 0) {
        float* const of_row = terms + row * terms_stride;
        of_row[0] = numerics::canonical_nan(by_p * numerics::sigmoid(widen(*numbers.p)));
        of_row[1] = numerics::canonical_nan(by_n * numerics::sigmoid(widen(*numbers.n)));
      }
    }
    __syncwarp();
    store_gradient(x, dout, dx, row, cols,
                   [&](float value, float d) { return d * numerics::xielu_slope(value, factors); });
  }
}

}  // namespace

void run(Context& context, const ops::XieluForward& op) {
  op.check();
  with_number(op.p, [&]<class T>() {
    with_rows(
        [&]<class X, class Out>(const Rows<X>& x, const Rows<Out>& out) {
          const Xielu<T, X, Out> body{numbers_of<T>(op.p, op.n), x, out};
          launch_groups(context, op.out.rows, op.out.cols, body, "xielu_forward");
        },
        op.x, op.out);
  });
}

void run(Context& context, const ops::XieluBackward& op) {
  op.check();
  if (op.dout.rows == 0) return;
  with_number(op.p, [&]<class T>() {
    with_rows(
        [&](const auto& x, const auto& dout, const auto& dx) {
          xielu_backward<<<warp_row_blocks(context, op.dout.rows), kWarpRowThreads, 0,
                           context.stream()>>>(
              op.dout.rows, op.dout.cols, numbers_of<T>(op.p, op.n), x, dout, dx,
              op.terms.empty() ? nullptr : op.terms.row<float>(0), op.terms.row_stride);
          check_launch("xielu_backward");
        },
        op.x, op.dout, op.dx);
  });
}

}  // namespace fp8lab::cuda
