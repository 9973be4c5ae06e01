// Hadamard transforms of the rows or columns of a matrix.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// result = the columns of `source`, or its rows unless `down`, by a Hadamard transform with the
/// signs of `key`, or by its inverse (`back`). Both are bf16 or f32 and of one shape; `result`,
/// rounded to its type, may be the source. Throws Error for blocks that no multiprocessor holds.
void rotate(Context& context, const TensorView& source, const TensorView& result, bool down,
            const Transform& transform, const RandomKey& key, bool back);

}  // namespace fp8lab::cuda
