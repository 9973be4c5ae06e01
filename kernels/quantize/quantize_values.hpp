// Operands that the kernels of ordinary codes do not make: values of wide formats, and codes of
// tiles with codebooks.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// ops::Quantize for a spec that is not quantized. The arguments have been checked.
void quantize_values(Context& context, const TensorView& source, bool transpose,
                     const RandomKey& key, QuantizedOperand& operand);

/// destination = scale * decode(code), or its transpose, rounded to the destination's type;
/// codebooks are applied, transforms along K are not undone.
void decode_operand(Context& context, const QuantizedOperand& operand, bool transpose,
                    const TensorView& destination);

/// ops::Quantize for a spec with codebooks. The arguments have been checked.
void quantize_codebooks(Context& context, const TensorView& source, bool transpose,
                        const RandomKey& key, QuantizedOperand& operand);

}  // namespace fp8lab::cuda
