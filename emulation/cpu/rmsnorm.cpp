#include <vector>

#include "emulation/cpu/column_sum.hpp"
#include "emulation/cpu/operation_checks.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {
namespace {

std::vector<float> row_of(const PointwiseKernels& kernels, const TensorView& vector) {
  std::vector<float> values(static_cast<std::size_t>(vector.cols));
  const float* row = read_row(kernels, vector, 0, values.data());
  if (row != values.data()) values.assign(row, row + vector.cols);
  return values;
}

}  // namespace

void rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                     const TensorView& y, const TensorView& rstd) {
  check_rmsnorm_forward(x, weight, y, rstd);
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = row_of(kernels, weight);
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(2 * x.cols));
    float* result = scratch.data() + x.cols;
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const float* row = read_row(kernels, x, t, scratch.data());
      const float r = kernels.rmsnorm(row, w.data(), epsilon, x.cols, result);
      kernels.canonical(&r, 1, rstd.row<float>(0) + t);
      write_row(kernels, result, x.cols, y, t);
    }
  }
}

void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                      const TensorView& rstd, const TensorView& dx, const TensorView& dweight) {
  check_rmsnorm_backward(dy, x, weight, rstd, dx, dweight);
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::vector<float> w = row_of(kernels, weight);
  const float* r = rstd.row<float>(0);
  // First the weight gradient, which reads dy, so that dx may be written over dy.
  add_column_sums(kernels, x.rows, dweight,
                  [&](std::int64_t row, std::int64_t first, std::int64_t count, float* sums) {
                    float dy_row[kColumnSumChunk];
                    float x_row[kColumnSumChunk];
                    kernels.add_normalised(read_row(kernels, dy, row, first, count, dy_row),
                                           read_row(kernels, x, row, first, count, x_row), r[row],
                                           count, sums);
                  });
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(3 * x.cols));
    float* x_scratch = scratch.data() + x.cols;
    float* result = x_scratch + x.cols;
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < x.rows; ++t) {
      kernels.rmsnorm_gradient(read_row(kernels, dy, t, scratch.data()),
                               read_row(kernels, x, t, x_scratch), w.data(), r[t], x.cols, result);
      write_row(kernels, result, x.cols, dx, t);
    }
  }
}

}  // namespace fp8lab::cpu
