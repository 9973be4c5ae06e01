#include "emulation/ops/quantize/smoothing.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void SmoothingFactors::check() const {
  const Checks checks("smoothing_factors");
  const std::int64_t k = transpose_a ? a.rows : a.cols;
  checks.activation("A", a, a.rows, a.cols);
  checks.activation("B", b, transpose_b ? k : b.rows, transpose_b ? b.cols : k);
  checks.vector("factors", factors, k, {DType::f32});
}

}  // namespace fp8lab::ops
