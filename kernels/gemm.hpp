// Backend::gemm and Backend::quantize's operands on the device.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// Backend::gemm, bit for bit that of emulation/cpu. Throws Error as cpu::gemm does.
void gemm(Context& context, const GemmSpec& spec, const QuantizedOperand& a,
          const QuantizedOperand& b, const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::cuda
