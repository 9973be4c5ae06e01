// Operands in the form in which they are multiplied.
#pragma once

#include <cstddef>
#include <vector>

#include "emulation/ops/operand.hpp"
#include "emulation/spec/gemm_spec.hpp"

namespace fp8lab::reference {

/// An operand in its multiplied_form: the operand itself, or its dequantized values.
class MultipliedOperand {
 public:
  MultipliedOperand(const Accumulator& accumulator, const QuantizedOperand& operand);
  MultipliedOperand(const MultipliedOperand&) = delete;
  MultipliedOperand& operator=(const MultipliedOperand&) = delete;

  const QuantizedOperand& get() const { return operand_; }

 private:
  QuantizedOperand operand_;
  std::vector<std::byte> values_;
};

}  // namespace fp8lab::reference
