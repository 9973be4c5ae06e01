// Clamps outliers between two quantiles on the device, bit for bit like
// emulation/reference/clamp.hpp.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Writes reference::clamp_bounds of `source`, bf16 or f32, to `bounds`, 2 floats on the device.
void write_clamp_bounds(Context& context, const TensorView& source, double quantile, float* bounds);

}  // namespace fp8lab::cuda
