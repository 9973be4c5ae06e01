#include "emulation/reference/multiplied_operand.hpp"

#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/reference/operand_decode.hpp"

namespace fp8lab::reference {

MultipliedOperand::MultipliedOperand(const Accumulator& accumulator,
                                     const QuantizedOperand& operand)
    : operand_(operand) {
  if (!is_copy(operand)) return;
  check_storage_order("GEMM operand", operand);
  const QuantSpec form = multiplied_form(accumulator, operand.spec);
  const DType dtype = operand.has_rows_contiguous() ? operand.codes.dtype : form.storage();
  values_.resize(static_cast<std::size_t>(operand.rows * operand.k) * size_of(dtype));
  operand_.spec = form;
  operand_.codes = {values_.data(), dtype, operand.rows, operand.k, operand.k};
  operand_.order = StorageOrder::k_contiguous;
  if (operand.has_rows_contiguous()) {
    copy_transposed(operand.codes, operand_.codes);
  } else {
    operand_.scales = {};
    decode_operand(operand, false, operand_.codes);
  }
}

}  // namespace fp8lab::reference
