// Transforms of operands on the device, bit for bit those of emulation/reference/transform.hpp:
// Hadamard matrices with signs, smoothing, and the clamp within given bounds.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// reference::transformed: `source` (R, C), bf16 or f32, by the operand's transform, f32 in the
/// context's memory for tensors. Throws Error as on the CPU, and for blocks of K that no
/// multiprocessor holds.
TensorView transformed(Context& context, const TensorView& source, bool transpose,
                       const QuantizedOperand& operand);

/// reference::transformed_whole of an operand with a linear transform or a source space.
TensorView transformed_whole(Context& context, const TensorView& source, bool transpose,
                             const QuantizedOperand& operand);

/// reference::undo_transform, in place; `values` are f32.
void undo_transform(Context& context, const TensorView& values, bool transpose,
                    const QuantizedOperand& operand);

}  // namespace fp8lab::cuda
