// Quantization of one source for two operands.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// True when quantize_both reads a source once for operands by these specs.
bool can_quantize_both(const QuantSpec& first, const QuantSpec& second);

/// ops::QuantizeBoth for specs of can_quantize_both, none of which takes random bits.
void quantize_both(Context& context, const ops::QuantizeBoth& op);

}  // namespace fp8lab::cuda
