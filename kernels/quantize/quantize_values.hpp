// Operands without ordinary codes: values in wide formats, and codes of tiles with codebooks.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::Quantize for a spec that is not quantized. Precondition: the
/// arguments have been checked.
void quantize_values(Context& context, const TensorView& source, bool transpose,
                     const QuantizedOperand& operand);

/// destination = scale * decode(code), or its transpose, rounded to the destination's type. Applies
/// codebooks; does not undo transforms along K.
void decode_operand(Context& context, const QuantizedOperand& operand, bool transpose,
                    const TensorView& destination);

/// Computes ops::Quantize for a spec with codebooks. Precondition: the arguments have been checked.
void quantize_codebooks(Context& context, const TensorView& source, bool transpose,
                        const QuantizedOperand& operand);

}  // namespace fp8lab::cuda
