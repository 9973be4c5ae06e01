#include "emulation/ops/quantize/operand_statistics.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab {

void ops::MeasureOperand::check() const {
  check_operand("operand_statistics", operand);
  check_matrix("operand_statistics", "source", source, transpose ? operand.k : operand.rows,
               transpose ? operand.rows : operand.k);
  Checks("operand_statistics").vector("record", record, sizeof(OperandStatistics), {DType::u8});
}

}  // namespace fp8lab
