// Operations that quantize their results before these leave the registers.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// ops::ProduceQuantize in one pass over the data; false, and nothing done, where none is made for
/// it. Those of RmsNormForward over whole rows: all tensors of one type, rows that fit into a
/// block, and scales of rows, of parts of rows, or a known one of the tensor. Those of
/// SwigluForward likewise.
bool produce_quantize(Context& context, const ops::ProduceQuantize& op);

}  // namespace fp8lab::cuda
