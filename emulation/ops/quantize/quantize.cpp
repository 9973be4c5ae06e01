#include "emulation/ops/quantize/quantize.hpp"

#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void Quantize::check() const {
  check_written_operand("quantize", operand);
  check_matrix("quantize", "source", source, transpose ? operand.k : operand.rows,
               transpose ? operand.rows : operand.k);
  if (operand.spec.scale_source == ScaleSource::delayed) {
    check_delayed_state(operand.spec, state);
  }
}

}  // namespace fp8lab::ops
