#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/pointwise/column_sum.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {

void run(const ops::RmsNormForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = values_of(kernels, op.weight);
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t cols = heads.cols;
  for_each_row(op.x.rows * heads.count, 2 * cols, [&](std::int64_t i, float* scratch) {
    const std::int64_t t = heads.row(i), first = heads.first(i);
    const float* row = read_row(kernels, op.x, t, first, cols, scratch);
    float* result = scratch + cols;
    const float r = kernels.rmsnorm(row, w.data(), op.epsilon, cols, result);
    kernels.canonical(&r, 1, op.rstd.row<float>(0) + i);
    write_row(kernels, result, cols, op.y, t, first);
  });
}

void run(const ops::RmsNormBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = values_of(kernels, op.weight);
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t cols = heads.cols;
  const float* r = op.rstd.row<float>(0);
  // The weight gradient comes first, because it reads dy and dx may overwrite dy.
  add_column_sums(kernels, op.x.rows * heads.count, op.dweight,
                  [&](std::int64_t i, std::int64_t first, std::int64_t count, float* sums) {
                    const std::int64_t t = heads.row(i), col = heads.first(i) + first;
                    float dy_row[kColumnSumChunk];
                    float x_row[kColumnSumChunk];
                    kernels.add_normalised(read_row(kernels, op.dy, t, col, count, dy_row),
                                           read_row(kernels, op.x, t, col, count, x_row), r[i],
                                           count, sums);
                  });
  for_each_row(op.x.rows * heads.count, 3 * cols, [&](std::int64_t i, float* scratch) {
    const std::int64_t t = heads.row(i), first = heads.first(i);
    float* result = scratch + 2 * cols;
    kernels.rmsnorm_gradient(read_row(kernels, op.dy, t, first, cols, scratch),
                             read_row(kernels, op.x, t, first, cols, scratch + cols), w.data(),
                             r[i], cols, result);
    write_row(kernels, result, cols, op.dx, t, first);
  });
}

}  // namespace fp8lab::cpu
