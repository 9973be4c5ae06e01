// Quantization of one source for two operands.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Returns true if quantize_both can read the source once for two operands with these specs.
bool can_quantize_both(const QuantSpec& first, const QuantSpec& second);

/// Computes ops::QuantizeBoth. Precondition: can_quantize_both() holds for the specs, so neither
/// of them uses random bits.
void quantize_both(Context& context, const ops::QuantizeBoth& op);

}  // namespace fp8lab::cuda
