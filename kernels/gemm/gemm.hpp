// Which GEMMs the device computes.
#pragma once

#include <string>

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Why the device does not compute this GEMM, or an empty string: what fp8lab::gemm_refusal
/// refuses, and the accumulators that only the CPU emulates (block scales inside the instruction,
/// FP16 and TF32 operands), whose bits nothing compares on a device.
std::string device_gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

}  // namespace fp8lab::cuda
