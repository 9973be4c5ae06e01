// The tensors that each operation writes.
#pragma once

#include <string_view>
#include <vector>

#include "emulation/ops/list.hpp"

namespace fp8lab {

/// One tensor that an operation writes, as the operation calls it: "d", "codes", "dweight".
struct OperationOutput {
  std::string_view name;
  TensorView view;
  const QuantizedOperand* operand = nullptr;  ///< the operand of these codes, scales or bounds
};

/// Returns the outputs of an operation in the order in which it computes them. Omits outputs that
/// nothing may read afterwards (without ProduceQuantize::keeps_output the producer's output; dx of
/// a gradient that is added).
#define FP8LAB_OPERATION(Name) std::vector<OperationOutput> outputs_of(const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab
