// What the device quantizes, and how.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Empty when the device can quantize by `spec`, else the reason: as on the CPU, but no expansions.
Support device_quantization(const QuantSpec& spec);
/// Throws Error for an operand that the device cannot quantize; `where` begins its text.
void check_supported(const char* where, const QuantizedOperand& operand);

/// True when quantize_both reads a source once for operands by these specs.
bool can_quantize_both(const QuantSpec& first, const QuantSpec& second);

/// ops::QuantizeBoth for specs of can_quantize_both, none of which takes random bits.
void quantize_both(Context& context, const ops::QuantizeBoth& op);

}  // namespace fp8lab::cuda
