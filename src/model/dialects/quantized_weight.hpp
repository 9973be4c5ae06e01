// The bytes of a quantized weight in a layout, from the codes and scales of an operand.
#pragma once

#include <vector>

#include "emulation/backend.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// The bytes of the tensors that layout_headers lists, in that order; `global` is empty without two
/// levels.
struct QuantizedBytes {
  TensorBytes codes, scales, global;
};

/// Returns the bytes of `operand`, whose spec the layout holds (refuse_spec). `amax` is the largest
/// magnitude of the values that were quantized; two levels need it. Precondition: no transform.
QuantizedBytes quantized_bytes(Backend& backend, const QuantizedOperand& operand,
                               const WeightLayout& layout, float amax);

}  // namespace fp8lab
