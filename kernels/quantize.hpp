// Backend's quantization on the device, bit for bit that of emulation/cpu/quantize.hpp.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// Backend::quantize. Throws Error as cpu::quantize does.
void quantize(Context& context, const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand);

/// Backend::dequantize.
void dequantize(Context& context, const QuantizedOperand& operand, bool transpose,
                const TensorView& destination);

/// Backend::update_delayed_scale.
void update_delayed_scale(Context& context, const QuantSpec& spec, const TensorView& state);

}  // namespace fp8lab::cuda
