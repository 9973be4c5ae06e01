#include "emulation/cpu/operations.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::cpu {

void run(const ops::Dequantize& op) {
  op.check();
  const QuantizedOperand& operand = op.operand;
  if (!op.leaves_space()) {
    return reference::decode_operand(operand, op.transpose, op.destination);
  }
  reference::FloatMatrix values(op.destination.rows, op.destination.cols);
  reference::decode_operand(operand, op.transpose, values.view());
  reference::undo_transform(values.view(), op.transpose, operand);
  run(ops::Copy{values.view(), op.destination});
}

}  // namespace fp8lab::cpu
