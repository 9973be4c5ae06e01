// Operands in the form in which a GEMM multiplies them.
#pragma once

#include <cstddef>
#include <vector>

#include "emulation/ops/quantize/operand.hpp"
#include "emulation/spec/gemm_spec.hpp"

namespace fp8lab::reference {

/// An operand in its multiplied_form, contiguous along K: the operand itself, its dequantized
/// values, or its values in the other storage order.
class MultipliedOperand {
 public:
  /// Returns whether a copy is needed, because the operand itself has another form.
  static bool is_copy(const QuantizedOperand& operand) {
    return operand.spec.has_codebooks() || operand.has_rows_contiguous();
  }
  /// Throws Error if the shape of the codes is not that of the operand.
  MultipliedOperand(const Accumulator& accumulator, const QuantizedOperand& operand);
  MultipliedOperand(const MultipliedOperand&) = delete;
  MultipliedOperand& operator=(const MultipliedOperand&) = delete;

  const QuantizedOperand& get() const { return operand_; }

 private:
  QuantizedOperand operand_;
  std::vector<std::byte> values_;
};

}  // namespace fp8lab::reference
