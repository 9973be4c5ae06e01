// Kernels that quantize the result of an operation while it is still in registers.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::ProduceQuantize in fewer passes over the data than its parts need. Returns false,
/// and does nothing, if there is no fused kernel for `op`. In one orientation there are kernels for
/// RmsNormForward with whole rows in registers (all tensors of one type, rows that fit into a
/// block, and scales of rows, of parts of rows, or a known scale of the tensor), for
/// AddRmsNormForward in bf16, and for SwigluForward under the same conditions. In both orientations
/// it calls produce_quantize_both.
bool produce_quantize(Context& context, const ops::ProduceQuantize& op);

/// Computes ops::ProduceQuantize in both orientations, for bf16 tensors and specs of
/// can_quantize_both with scales of tiles or a known scale of the tensor. Element-wise producers
/// take one pass, unless a tile of a SwiGLU gradient would reach over both of its halves; the
/// output itself is stored only if op.keeps_output. RMS norms, also of a sum, take two passes, one
/// for rstd and the sum and one for the codes, and only if the output is not kept.
bool produce_quantize_both(Context& context, const ops::ProduceQuantize& op);

}  // namespace fp8lab::cuda
