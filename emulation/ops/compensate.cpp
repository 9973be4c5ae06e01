#include "emulation/ops/compensate.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/operand_checks.hpp"

namespace fp8lab::ops {

void Compensate::check() const {
  const Checks checks("compensate");
  const bool is_left = a.spec.transform.compensated;
  checks.require(is_left != b.spec.transform.compensated,
                 "exactly one operand needs a compensated clamp");
  checks.require(a.k == b.k, "operands of different K");
  checks.activation("A", a_source, transpose_a ? a.k : a.rows, transpose_a ? a.rows : a.k);
  checks.activation("B", b_source, transpose_b ? b.k : b.rows, transpose_b ? b.rows : b.k);
  checks.activation("D", d, a.rows, b.rows);
  const QuantizedOperand& clamped = is_left ? a : b;
  check_transform(clamped, clamped.rows, clamped.k);
}

}  // namespace fp8lab::ops
