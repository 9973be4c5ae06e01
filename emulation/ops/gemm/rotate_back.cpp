#include "emulation/ops/gemm/rotate_back.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void RotateBack::check() const {
  const Checks checks("rotate_back");
  checks.require(a.space_of_rows() || b.space_of_rows(),
                 "an operand needs a transform of its rows");
  checks.activation("D", d, a.rows, b.rows);
  for (const QuantizedOperand* operand : {&a, &b}) {
    checks.require(!operand->spec.transform.is_left() || !operand->source_space,
                   "the rows of an operand are transformed twice");
    check_space(operand->space_of_rows(), operand->rows);
  }
}

}  // namespace fp8lab::ops
