#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/pointwise/column_sum.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {

void run(const ops::LayerNormForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = values_of(kernels, op.weight), bias = values_of(kernels, op.bias);
  const std::int64_t cols = op.x.cols;
  for_each_row(op.x.rows, 2 * cols, [&](std::int64_t t, float* scratch) {
    const float* row = read_row(kernels, op.x, t, scratch);
    float* result = scratch + cols;
    const RowMoments m = kernels.layernorm(row, w.data(), bias.data(), op.epsilon, cols, result);
    kernels.canonical(&m.mean, 1, op.mean.row<float>(0) + t);
    kernels.canonical(&m.rstd, 1, op.rstd.row<float>(0) + t);
    write_row(kernels, result, cols, op.y, t);
  });
}

void run(const ops::LayerNormBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = values_of(kernels, op.weight);
  const std::int64_t cols = op.x.cols;
  const float* mean = op.mean.row<float>(0);
  const float* rstd = op.rstd.row<float>(0);
  // The gradients of weight and bias come first, because they read dy and dx may overwrite dy.
  add_column_sums(kernels, op.x.rows, op.dweight,
                  [&](std::int64_t t, std::int64_t first, std::int64_t count, float* sums) {
                    float dy_row[kColumnSumChunk];
                    float x_row[kColumnSumChunk];
                    kernels.add_centred(read_row(kernels, op.dy, t, first, count, dy_row),
                                        read_row(kernels, op.x, t, first, count, x_row),
                                        {mean[t], rstd[t]}, count, sums);
                  });
  run(ops::BiasBackward{op.dy, op.dbias});
  for_each_row(op.x.rows, 3 * cols, [&](std::int64_t t, float* scratch) {
    float* result = scratch + 2 * cols;
    kernels.layernorm_gradient(read_row(kernels, op.dy, t, scratch),
                               read_row(kernels, op.x, t, scratch + cols), w.data(),
                               {mean[t], rstd[t]}, cols, result);
    write_row(kernels, result, cols, op.dx, t);
  });
}

}  // namespace fp8lab::cpu
