// Transforms of operands on the device, bit for bit like emulation/reference/transform.hpp:
// Hadamard matrices with signs, smoothing, and the clamp within given bounds.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes reference::transformed: applies the operand's transform to `source` (R, C), bf16 or
/// f32. The result is f32, in the context's tensor memory. Throws Error as on the CPU, and if a
/// multiprocessor cannot hold a block of K.
TensorView transformed(Context& context, const TensorView& source, bool transpose,
                       const QuantizedOperand& operand);

/// Computes reference::transformed_whole. Precondition: the operand has a linear
/// transform or a source space.
TensorView transformed_whole(Context& context, const TensorView& source, bool transpose,
                             const QuantizedOperand& operand);

/// Computes reference::undo_transform in place; `values` are f32.
void undo_transform(Context& context, const TensorView& values, bool transpose,
                    const QuantizedOperand& operand);

}  // namespace fp8lab::cuda
