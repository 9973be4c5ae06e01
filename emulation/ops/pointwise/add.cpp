#include "emulation/ops/pointwise/add.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void Add::check() const {
  const Checks checks("add");
  checks.activation("a", a, a.rows, a.cols);
  checks.activation("b", b, a.rows, a.cols);
  checks.activation("sum", sum, a.rows, a.cols);
}

}  // namespace fp8lab::ops
