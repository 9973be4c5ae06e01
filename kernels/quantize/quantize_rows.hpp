// Quantization of whole rows, which stay in registers from amax to codes.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Quantizes an operand with one scale a row, in the orientation of the source, in one pass.
/// Precondition: the source has at most kLongestRow columns.
void quantize_rows(Context& context, const TensorView& source, const QuantizedOperand& operand);

}  // namespace fp8lab::cuda
