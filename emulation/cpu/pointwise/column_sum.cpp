#include "emulation/cpu/pointwise/column_sum.hpp"

namespace fp8lab::cpu {

void run(const ops::BiasBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  add_column_sums(kernels, op.dy.rows, op.dbias,
                  [&](std::int64_t row, std::int64_t first, std::int64_t count, float* sums) {
                    float scratch[kColumnSumChunk];
                    kernels.add(sums, read_row(kernels, op.dy, row, first, count, scratch), count,
                                sums);
                  });
}

}  // namespace fp8lab::cpu
