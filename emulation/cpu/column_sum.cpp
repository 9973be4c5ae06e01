#include "emulation/cpu/column_sum.hpp"

#include "emulation/cpu/operation_checks.hpp"

namespace fp8lab::cpu {

void bias_backward(const TensorView& dy, const TensorView& dbias) {
  check_bias_backward(dy, dbias);
  const PointwiseKernels& kernels = pointwise_kernels();
  add_column_sums(kernels, dy.rows, dbias,
                  [&](std::int64_t row, std::int64_t first, std::int64_t count, float* sums) {
                    float scratch[kColumnSumChunk];
                    kernels.add(sums, read_row(kernels, dy, row, first, count, scratch), count,
                                sums);
                  });
}

}  // namespace fp8lab::cpu
