// Backend::gemm and Backend::quantize's operands on the device.
#pragma once

#include <string>

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// Why the device does not compute this GEMM, or an empty string: what cpu::gemm_refusal refuses,
/// and the accumulators that only the CPU emulates (block scales inside the instruction, FP16 and
/// TF32 operands), whose bits nothing compares on a device.
std::string gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

/// Backend::gemm, bit for bit that of emulation/cpu. Throws Error as cpu::gemm does and for what
/// gemm_refusal refuses.
void gemm(Context& context, const GemmSpec& spec, const QuantizedOperand& a,
          const QuantizedOperand& b, const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::cuda
