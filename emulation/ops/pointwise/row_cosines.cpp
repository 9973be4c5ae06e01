#include "emulation/ops/pointwise/row_cosines.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void RowCosines::check() const {
  const Checks checks("row_cosines");
  checks.activation("a", a, a.rows, a.cols);
  checks.activation("b", b, a.rows, a.cols);
  checks.vector("cosines", cosines, a.rows, {DType::f32});
}

}  // namespace fp8lab::ops
