// The terms of numerics::hash_term, summed on the device.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

using HashSum = unsigned long long;  ///< as atomicAdd takes it

/// *total += the terms of a matrix whose rows are cut into words of `word_bytes`, counted from
/// `first` on. Integer additions modulo 2^64: their order does not matter.
void add_hash(Context& context, numerics::HashedPart part, const TensorView& view, int word_bytes,
              std::uint64_t first, HashSum* total);

/// The same for the transpose of a bf16 or f32 matrix, in words of 8 bytes.
void add_transposed_hash(Context& context, numerics::HashedPart part, const TensorView& view,
                         HashSum* total);

}  // namespace fp8lab::cuda
