// Hadamard transforms of the rows or columns of a matrix.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Multiplies the columns of `source`, or its rows unless `down`, by a Hadamard transform with
/// the signs of `key`, or by its inverse (`back`). Both tensors are bf16 or f32 and of one
/// shape. `result` is rounded to its type and may be the source. Throws Error if a
/// multiprocessor cannot hold a block.
void rotate(Context& context, const TensorView& source, const TensorView& result, bool down,
            const Hadamard& hadamard, const RandomKey& key, bool back);

}  // namespace fp8lab::cuda
