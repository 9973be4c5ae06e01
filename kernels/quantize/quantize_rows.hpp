// Quantization of whole rows, which stay in registers from their amax to their codes.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// An operand by has_row_scales, in the orientation of the source, from one reading. The source has
/// at most kLongestRow columns.
void quantize_rows(Context& context, const TensorView& source, QuantizedOperand& operand);

}  // namespace fp8lab::cuda
