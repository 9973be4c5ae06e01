// The clamp of outliers between two quantiles on the device, bit for bit that of
// emulation/cpu/clamp.hpp.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// bounds (2 floats on the device) = cpu::clamp_bounds of `source`, bf16 or f32.
void write_clamp_bounds(Context& context, const TensorView& source, double quantile, float* bounds);

/// Backend::compensate.
void compensate(Context& context, const QuantizedOperand& a, const TensorView& a_source,
                bool transpose_a, const QuantizedOperand& b, const TensorView& b_source,
                bool transpose_b, const TensorView& d);

}  // namespace fp8lab::cuda
