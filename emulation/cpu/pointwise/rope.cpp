#include <algorithm>
#include <string>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/ops/checks.hpp"

namespace fp8lab::cpu {

void run(const ops::Rope& op) {
  op.check();
  const std::int64_t half = op.head_dim / 2;
  const std::int32_t* position = op.positions.row<std::int32_t>(0);
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    if (position[t] < 0 || position[t] >= op.cosine.rows) {
      Checks("rope").fail("position " + std::to_string(position[t]) + " of token " +
                          std::to_string(t) + " is outside the table of " +
                          std::to_string(op.cosine.rows) + " positions");
    }
  }
  const PointwiseKernels& kernels = pointwise_kernels();
  for_each_row(op.x.rows, op.x.cols, [&](std::int64_t t, float* scratch) {
    const float* row = read_row(kernels, op.x, t, scratch);
    if (row != scratch) std::copy(row, row + op.x.cols, scratch);
    for (std::int64_t head = 0; head < op.x.cols; head += op.head_dim) {
      kernels.rotate(op.cosine.row<float>(position[t]), op.sine.row<float>(position[t]), op.inverse,
                     half, scratch + head, scratch + head + half);
    }
    write_row(kernels, scratch, op.x.cols, op.x, t);
  });
}

}  // namespace fp8lab::cpu
