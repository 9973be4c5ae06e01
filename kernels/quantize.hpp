// Backend's quantization on the device, bit for bit that of emulation/cpu/quantize.hpp.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// Empty when the device can quantize by `spec`, else the reason: as on the CPU, but no expansions.
Support supports_quantization(const QuantSpec& spec);
/// Throws Error for an operand that the device cannot quantize; `where` begins its text.
void check_supported(const char* where, const QuantizedOperand& operand);

/// Backend::quantize. Throws Error as cpu::quantize does.
void quantize(Context& context, const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand);

/// True when quantize_both reads a source once for operands by these specs.
bool can_quantize_both(const QuantSpec& first, const QuantSpec& second);

/// Backend::quantize_both for specs of can_quantize_both, none of which takes random bits.
void quantize_both(Context& context, const TensorView& source, const TensorView& state,
                   QuantizedOperand& first, QuantizedOperand& second);

/// Backend::dequantize.
void dequantize(Context& context, const QuantizedOperand& operand, bool transpose,
                const TensorView& destination);

/// Backend::update_delayed_scale.
void update_delayed_scale(Context& context, const QuantSpec& spec, const TensorView& state);

}  // namespace fp8lab::cuda
