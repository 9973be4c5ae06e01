#include "emulation/ops/quantize/partial_values.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void PartialValues::check() const {
  const Checks checks("partial_values");
  check_operand("partial_values", operand);
  checks.activation("source", source, transpose ? operand.k : operand.rows,
                    transpose ? operand.rows : operand.k);
  check_transform(operand, operand.rows, operand.k);
  if (!values.empty()) checks.tensor("values", values, operand.rows, operand.k, {DType::f32});
  checks.vector("found", found, ElementErrorKind::kCount, {DType::i32});
}

}  // namespace fp8lab::ops
