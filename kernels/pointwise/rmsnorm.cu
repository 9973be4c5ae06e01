#include <cstdint>

#include "kernels/pointwise/column_sum.cuh"
#include "kernels/pointwise/warp_rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// `matrix` for groups that start at multiples of kGroup within a head.
template <class T>
Rows<T> groups_of(Rows<T> matrix, const NormHeads& heads) {
  matrix.wide = matrix.wide && (heads.count == 1 || heads.cols % kGroup == 0);
  return matrix;
}

/// A warp for each head. y may be x: all of a head is summed before any of it is overwritten.
template <class X, class W, class Y>
__global__ void forward(std::int64_t count, NormHeads heads, Rows<X> x, Rows<W> weight,
                        float epsilon, Rows<Y> y, float* rstd) {
  const std::int64_t cols = heads.cols;
  for (std::int64_t head = first_row(); head < count; head += row_step()) {
    const std::int64_t row = heads.row(head), first = heads.first(head);
    const float squares = warp_tree_sum(cols, [&](std::int64_t c) {
      const float value = x.load(row, first + c);
      return value * value;
    });
    const float mean = squares / static_cast<float>(cols);
    const float r = 1.0f / __fsqrt_rn(mean + epsilon);
    if (lane_id() == 0) rstd[head] = numerics::canonical_nan(r);
    for_each_group_of_row(cols, [&](std::int64_t col, int count) {
      float values[kGroup], w[kGroup];
      x.load_group(row, first + col, count, values);
      weight.load_group(0, col, count, w);
      for (int i = 0; i < kGroup; ++i) values[i] = (values[i] * r) * w[i];
      y.store_group(row, first + col, count, values);
    });
  }
}

/// A warp for each head. dx may be dy: all of a head is summed before any of it is overwritten.
template <class DY, class X, class W, class DX>
__global__ void backward(std::int64_t count, NormHeads heads, Rows<DY> dy, Rows<X> x,
                         Rows<W> weight, const float* rstd, Rows<DX> dx) {
  const std::int64_t cols = heads.cols;
  for (std::int64_t head = first_row(); head < count; head += row_step()) {
    const std::int64_t row = heads.row(head), first = heads.first(head);
    const float s = warp_tree_sum(cols, [&](std::int64_t c) {
      return (dy.load(row, first + c) * weight.load(0, c)) * x.load(row, first + c);
    });
    const float r = rstd[head];
    const float k = ((s * r) * r) / static_cast<float>(cols);
    for_each_group_of_row(cols, [&](std::int64_t col, int count) {
      float d[kGroup], values[kGroup], w[kGroup];
      dy.load_group(row, first + col, count, d);
      x.load_group(row, first + col, count, values);
      weight.load_group(0, col, count, w);
      for (int i = 0; i < kGroup; ++i) d[i] = r * ((d[i] * w[i]) - (values[i] * k));
      dx.store_group(row, first + col, count, d);
    });
  }
}

/// Summand of the weight gradient.
template <class DY, class X>
struct Normalised {
  NormHeads heads;
  Rows<DY> dy;
  Rows<X> x;
  const float* rstd;
  __device__ float operator()(std::int64_t head, std::int64_t col) const {
    const std::int64_t row = heads.row(head), at = heads.first(head) + col;
    return dy.load(row, at) * (x.load(row, at) * rstd[head]);
  }
};

}  // namespace

void run(Context& context, const ops::RmsNormForward& op) {
  op.check();
  if (op.x.rows == 0) return;
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t count = op.x.rows * heads.count;
  with_rows(
      [&]<class X, class W, class Y>(const Rows<X>& in, const Rows<W>& w, const Rows<Y>& out) {
        forward<<<warp_row_blocks(context, count), kWarpRowThreads, 0, context.stream()>>>(
            count, heads, groups_of(in, heads), w, op.epsilon, groups_of(out, heads),
            op.rstd.row<float>(0));
        check_launch("rmsnorm_forward");
      },
      op.x, op.weight, op.y);
}

void run(Context& context, const ops::RmsNormBackward& op) {
  op.check();
  const float* r = op.rstd.row<float>(0);
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t count = op.x.rows * heads.count;
  with_rows(
      [&]<class DY, class X, class W, class DX>(const Rows<DY>& d, const Rows<X>& in,
                                                const Rows<W>& w, const Rows<DX>& out) {
        // First the op.weight gradient, which reads op.dy, so that op.dx may be written over op.dy.
        add_column_sums(context, count, Normalised<DY, X>{heads, d, in, r}, op.dweight,
                        "rmsnorm_backward: op.dweight");
        if (op.x.rows == 0) return;
        backward<<<warp_row_blocks(context, count), kWarpRowThreads, 0, context.stream()>>>(
            count, heads, groups_of(d, heads), groups_of(in, heads), w, r, groups_of(out, heads));
        check_launch("rmsnorm_backward");
      },
      op.dy, op.x, op.weight, op.dx);
}

}  // namespace fp8lab::cuda
