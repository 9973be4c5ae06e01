// Operations that quantize their results before these leave the registers.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// ops::ProduceQuantize in fewer passes over the data than its parts take; false, and nothing done,
/// where none are made for it. In one orientation, those of RmsNormForward over whole rows: all
/// tensors of one type, rows that fit into a block, and scales of rows, of parts of rows, or a
/// known one of the tensor; those of AddRmsNormForward in bf16 and of SwigluForward likewise. In
/// both orientations, those of produce_quantize_both.
bool produce_quantize(Context& context, const ops::ProduceQuantize& op);

/// The same in both orientations: of bf16 tensors, by specs of can_quantize_both with scales of
/// tiles, or a known one of the tensor. Element-wise producers in one pass, no tile of a gradient
/// of SwiGLU lying in both of its halves; the output itself is stored only where op.keeps_output.
/// RMS norms, of a sum as well, where the output is not kept: one pass for rstd and the sum, one
/// for the codes.
bool produce_quantize_both(Context& context, const ops::ProduceQuantize& op);

}  // namespace fp8lab::cuda
