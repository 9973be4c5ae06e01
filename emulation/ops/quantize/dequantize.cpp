#include "emulation/ops/quantize/dequantize.hpp"

#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void Dequantize::check() const {
  check_operand("dequantize", operand);
  check_matrix("dequantize", "destination", destination, transpose ? operand.k : operand.rows,
               transpose ? operand.rows : operand.k);
}

}  // namespace fp8lab::ops
