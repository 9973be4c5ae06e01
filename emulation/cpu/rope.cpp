#include <string>
#include <vector>

#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/operation_checks.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {

void rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
          const TensorView& sine, std::int64_t head_dim, bool inverse) {
  check_rope(x, positions, cosine, sine, head_dim);
  const std::int64_t half = head_dim / 2;
  const std::int32_t* position = positions.row<std::int32_t>(0);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    if (position[t] < 0 || position[t] >= cosine.rows) {
      Checks("rope").fail("position " + std::to_string(position[t]) + " of token " +
                          std::to_string(t) + " is outside the table of " +
                          std::to_string(cosine.rows) + " positions");
    }
  }
  const PointwiseKernels& kernels = pointwise_kernels();
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(x.cols));
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const float* row = read_row(kernels, x, t, scratch.data());
      if (row != scratch.data()) scratch.assign(row, row + x.cols);
      for (std::int64_t head = 0; head < x.cols; head += head_dim) {
        kernels.rotate(cosine.row<float>(position[t]), sine.row<float>(position[t]), inverse, half,
                       scratch.data() + head, scratch.data() + head + half);
      }
      write_row(kernels, scratch.data(), x.cols, x, t);
    }
  }
}

}  // namespace fp8lab::cpu
