// Operations that quantize their results before these leave the registers: Backend's composites.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// True when rmsnorm_quantize makes y (T, C) and its operand in one pass: all tensors of one type,
/// rows that fit into a block, and scales of rows, of parts of rows, or a known one of the tensor.
bool can_quantize_norm(const TensorView& x, const TensorView& weight, const TensorView& y,
                       const QuantSpec& spec);

/// Backend::rmsnorm_quantize. Requires can_quantize_norm.
void rmsnorm_quantize(Context& context, const TensorView& x, const TensorView& weight,
                      float epsilon, const TensorView& y, const TensorView& rstd,
                      const TensorView& state, QuantizedOperand& operand);

/// The same for swiglu_quantize, where one pass is the faster way.
bool can_quantize_swiglu(const TensorView& gate_up, const TensorView& out, const QuantSpec& spec);

/// Backend::swiglu_quantize. Requires can_quantize_swiglu.
void swiglu_quantize(Context& context, const TensorView& gate_up, const TensorView& out,
                     const TensorView& state, QuantizedOperand& operand);

}  // namespace fp8lab::cuda
