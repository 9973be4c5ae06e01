// The GEMMs that the device supports.
#pragma once

#include <string>

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Returns why the device does not support this GEMM, or an empty string. It refuses what
/// fp8lab::gemm_refusal refuses, and the accumulators that only the CPU emulates (block
/// scales inside the instruction, FP16 and TF32 operands), because no device result exists
/// to compare their bits with.
std::string device_gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

}  // namespace fp8lab::cuda
