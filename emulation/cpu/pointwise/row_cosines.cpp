#include <cmath>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {

void run(const ops::RowCosines& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::int64_t n = op.a.cols;
  float* const cosines = op.cosines.row<float>(0);
  for_each_row(op.a.rows, 2 * n, [&](std::int64_t row, float* scratch) {
    const float* a = read_row(kernels, op.a, row, scratch);
    const float* b = read_row(kernels, op.b, row, scratch + n);
    const float lengths = std::sqrt(kernels.dot(a, a, n)) * std::sqrt(kernels.dot(b, b, n));
    const float cosine = lengths <= 0.0f ? 0.0f : std::fabs(kernels.dot(a, b, n)) / lengths;
    cosines[row] = numerics::canonical_nan(cosine);
  });
}

}  // namespace fp8lab::cpu
