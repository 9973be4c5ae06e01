// The transpose of a matrix on the device.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// destination (C, R) = source (R, C)^T, bit for bit; both bf16 or both f32, not overlapping.
void transpose(Context& context, const TensorView& source, const TensorView& destination);

}  // namespace fp8lab::cuda
