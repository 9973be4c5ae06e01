// The clamp of outliers between two quantiles on the device, bit for bit that of
// emulation/reference/clamp.hpp.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// bounds (2 floats on the device) = reference::clamp_bounds of `source`, bf16 or f32.
void write_clamp_bounds(Context& context, const TensorView& source, double quantile, float* bounds);

}  // namespace fp8lab::cuda
