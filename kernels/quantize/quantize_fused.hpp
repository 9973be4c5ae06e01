// Operations that quantize their results before these leave the registers.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// ops::ProduceQuantize in one pass over the data; false, and nothing done, where none is made for
/// it. In one orientation, those of RmsNormForward over whole rows: all tensors of one type, rows
/// that fit into a block, and scales of rows, of parts of rows, or a known one of the tensor; those
/// of SwigluForward likewise. In both orientations, those of produce_quantize_both.
bool produce_quantize(Context& context, const ops::ProduceQuantize& op);

/// The same in both orientations: element-wise producers of bf16 tensors, by specs of
/// can_quantize_both with scales of tiles, none of which lies in both halves of a gradient of
/// SwiGLU, or a known one of the tensor. The output itself is stored only where op.keeps_output.
bool produce_quantize_both(Context& context, const ops::ProduceQuantize& op);

}  // namespace fp8lab::cuda
