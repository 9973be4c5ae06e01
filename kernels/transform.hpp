// Transforms of operands on the device, bit for bit those of emulation/cpu/transform.hpp: Hadamard
// matrices with signs, smoothing, and the clamp within given bounds.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// cpu::transformed: `source` (R, C), bf16 or f32, by the operand's transform, f32 in the context's
/// memory for tensors. Throws Error as on the CPU, and for blocks of K that no multiprocessor
/// holds.
TensorView transformed(Context& context, const TensorView& source, bool transpose,
                       const QuantizedOperand& operand);

/// cpu::undo_transform, in place; `values` are f32.
void undo_transform(Context& context, const TensorView& values, bool transpose,
                    const QuantizedOperand& operand);

/// Backend::smoothing_factors.
void smoothing_factors(Context& context, const Transform& transform, const TensorView& a,
                       bool transpose_a, const TensorView& b, bool transpose_b,
                       const TensorView& factors);

}  // namespace fp8lab::cuda
