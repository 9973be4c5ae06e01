// What operations write, tensor by tensor.
#pragma once

#include <string_view>
#include <vector>

#include "emulation/ops/list.hpp"

namespace fp8lab {

/// One tensor that an operation writes, as the operation calls it: "d", "codes", "dweight".
struct OperationOutput {
  std::string_view name;
  TensorView view;
  const QuantizedOperand* operand = nullptr;  ///< whose codes, scales or bounds they are
};

/// In the order in which they are computed. What nobody may read afterwards is not among them
/// (ProduceQuantize::keeps_output, dx of a gradient that is added).
#define FP8LAB_OPERATION(Name) std::vector<OperationOutput> outputs_of(const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab
