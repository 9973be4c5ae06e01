#include <cstdint>

#include "kernels/pointwise/column_sum.cuh"
#include "kernels/pointwise/warp_rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// One warp for each row. y may alias x: a whole row is summed before any of it is overwritten.
template <class X, class W, class Y>
__global__ void forward(std::int64_t rows, std::int64_t cols, Rows<X> x, Rows<W> weight,
                        Rows<W> bias, float epsilon, Rows<Y> y, float* means, float* rstds) {
  const auto count = static_cast<float>(cols);
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    const float sum = warp_tree_sum(cols, [&](std::int64_t c) { return x.load(row, c); });
    const float mean = sum / count;
    const float squares = warp_tree_sum(cols, [&](std::int64_t c) {
      const float d = x.load(row, c) - mean;
      return d * d;
    });
    const float rstd = 1.0f / __fsqrt_rn((squares / count) + epsilon);
    if (lane_id() == 0) {
      means[row] = numerics::canonical_nan(mean);
      rstds[row] = numerics::canonical_nan(rstd);
    }
    for_each_group_of_row(cols, [&](std::int64_t col, int n) {
      float values[kGroup], w[kGroup], shift[kGroup];
      x.load_group(row, col, n, values);
      weight.load_group(0, col, n, w);
      bias.load_group(0, col, n, shift);
      for (int i = 0; i < kGroup; ++i) {
        values[i] = (((values[i] - mean) * rstd) * w[i]) + shift[i];
      }
      y.store_group(row, col, n, values);
    });
  }
}

/// One warp for each row. dx may alias dy: a whole row is summed before any of it is overwritten.
template <class DY, class X, class W, class DX>
__global__ void backward(std::int64_t rows, std::int64_t cols, Rows<DY> dy, Rows<X> x,
                         Rows<W> weight, const float* means, const float* rstds, Rows<DX> dx) {
  const auto count = static_cast<float>(cols);
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    const float mean = means[row], rstd = rstds[row];
    const float upstream =
        warp_tree_sum(cols, [&](std::int64_t c) { return dy.load(row, c) * weight.load(0, c); });
    const float products = warp_tree_sum(cols, [&](std::int64_t c) {
      return (dy.load(row, c) * weight.load(0, c)) * ((x.load(row, c) - mean) * rstd);
    });
    const float a = upstream / count, b = products / count;
    for_each_group_of_row(cols, [&](std::int64_t col, int n) {
      float d[kGroup], values[kGroup], w[kGroup];
      dy.load_group(row, col, n, d);
      x.load_group(row, col, n, values);
      weight.load_group(0, col, n, w);
      for (int i = 0; i < kGroup; ++i) {
        const float h = (values[i] - mean) * rstd;
        d[i] = rstd * (((d[i] * w[i]) - a) - (h * b));
      }
      dx.store_group(row, col, n, d);
    });
  }
}

/// Terms of the weight gradient.
template <class DY, class X>
struct Centred {
  struct Loaded {
    DY dy[kGroup];
    X x[kGroup];
  };
  Rows<DY> dy;
  Rows<X> x;
  const float *mean, *rstd;

  __device__ bool is_wide() const { return dy.wide && x.wide; }
  __device__ Loaded load(std::int64_t row, std::int64_t col, int count) const {
    Loaded loaded;
    dy.load_bits(row, col, count, loaded.dy);
    x.load_bits(row, col, count, loaded.x);
    return loaded;
  }
  __device__ void add(const Loaded& loaded, std::int64_t row, float (&sums)[kGroup]) const {
    const float m = mean[row], r = rstd[row];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      sums[i] = sums[i] + widen(loaded.dy[i]) * ((widen(loaded.x[i]) - m) * r);
    }
  }
};

}  // namespace

void run(Context& context, const ops::LayerNormForward& op) {
  op.check();
  if (op.x.rows == 0) return;
  with_rows(
      [&]<class X, class W, class Y>(const Rows<X>& in, const Rows<W>& w, const Rows<Y>& out) {
        forward<<<warp_row_blocks(context, op.x.rows), kWarpRowThreads, 0, context.stream()>>>(
            op.x.rows, op.x.cols, in, w, rows_of<W>(op.bias), op.epsilon, out,
            op.mean.row<float>(0), op.rstd.row<float>(0));
        check_launch("layernorm_forward");
      },
      op.x, op.weight, op.y);
}

void run(Context& context, const ops::LayerNormBackward& op) {
  op.check();
  const float *mean = op.mean.row<float>(0), *rstd = op.rstd.row<float>(0);
  const std::int64_t rows = op.x.rows;
  // The gradients of weight and bias come first: they read op.dy, which op.dx may overwrite.
  with_rows(
      [&]<class DY, class X>(const Rows<DY>& d, const Rows<X>& in) {
        add_column_sums(context, rows, Centred<DY, X>{d, in, mean, rstd}, op.dweight,
                        "layernorm_backward: op.dweight");
      },
      op.dy, op.x);
  run(context, ops::BiasBackward{op.dy, op.dbias});
  if (rows == 0) return;
  with_rows(
      [&]<class DY, class X, class W, class DX>(const Rows<DY>& d, const Rows<X>& in,
                                                const Rows<W>& w, const Rows<DX>& out) {
        backward<<<warp_row_blocks(context, rows), kWarpRowThreads, 0, context.stream()>>>(
            rows, op.x.cols, d, in, w, mean, rstd, out);
        check_launch("layernorm_backward");
      },
      op.dy, op.x, op.weight, op.dx);
}

}  // namespace fp8lab::cuda
