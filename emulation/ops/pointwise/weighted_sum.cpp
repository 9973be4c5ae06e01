#include "emulation/ops/pointwise/weighted_sum.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void WeightedSum::check() const {
  const Checks checks("weighted_sum");
  checks.activation("a", a, a.rows, a.cols);
  if (!b.empty()) checks.activation("b", b, a.rows, a.cols);
  checks.activation("sum", sum, a.rows, a.cols);
}

}  // namespace fp8lab::ops
