// Operands in the form in which they are multiplied.
#pragma once

#include <cstddef>
#include <vector>

#include "emulation/ops/operand.hpp"
#include "emulation/spec/gemm_spec.hpp"

namespace fp8lab::reference {

/// An operand in its multiplied_form, K contiguous: the operand itself, its dequantized values, or
/// its values in the other order.
class MultipliedOperand {
 public:
  /// Whether the operand itself does not do.
  static bool is_copy(const QuantizedOperand& operand) {
    return operand.spec.has_codebooks() || operand.has_rows_contiguous();
  }
  /// Throws Error for codes whose shape is not that of the operand.
  MultipliedOperand(const Accumulator& accumulator, const QuantizedOperand& operand);
  MultipliedOperand(const MultipliedOperand&) = delete;
  MultipliedOperand& operator=(const MultipliedOperand&) = delete;

  const QuantizedOperand& get() const { return operand_; }

 private:
  QuantizedOperand operand_;
  std::vector<std::byte> values_;
};

}  // namespace fp8lab::reference
