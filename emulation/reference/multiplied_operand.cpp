#include "emulation/reference/multiplied_operand.hpp"

#include "emulation/reference/operand_decode.hpp"

namespace fp8lab::reference {

MultipliedOperand::MultipliedOperand(const Accumulator& accumulator,
                                     const QuantizedOperand& operand)
    : operand_(operand) {
  const QuantSpec form = multiplied_form(accumulator, operand.spec);
  if (form == operand.spec) return;
  const DType dtype = form.storage();
  values_.resize(static_cast<std::size_t>(operand.rows * operand.k) * size_of(dtype));
  operand_.spec = form;
  operand_.scales = {};
  operand_.codes = {values_.data(), dtype, operand.rows, operand.k, operand.k};
  decode_operand(operand, false, operand_.codes);
}

}  // namespace fp8lab::reference
