#include "emulation/ops/gemm/compensate.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void Compensate::check() const {
  const Checks checks("compensate");
  checks.require(is_left() != b.spec.transform.is_compensated(),
                 "exactly one operand needs a compensated clamp");
  checks.require(a.k == b.k, "operands of different K");
  const auto source = [&](const char* name, const QuantizedOperand& operand, const TensorView& view,
                          bool transpose) {
    if (&operand == &other() && takes_codes()) return check_operand("compensate", operand);
    checks.activation(name, view, transpose ? operand.k : operand.rows,
                      transpose ? operand.rows : operand.k);
  };
  source("A", a, a_source, transpose_a);
  source("B", b, b_source, transpose_b);
  checks.activation("D", d, a.rows, b.rows);
  check_transform(clamped(), clamped().rows, clamped().k);
}

}  // namespace fp8lab::ops
