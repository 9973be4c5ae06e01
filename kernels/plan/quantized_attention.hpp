// Attention on quantized operands, which the kernels do not compute.
#pragma once

namespace fp8lab::cuda {

/// The reason for which its operations are refused.
inline constexpr const char* kNoQuantizedAttention =
    "the CUDA backend does not compute attention on quantized operands; accepted: the backend cpu, "
    "or a recipe without [attention]";

}  // namespace fp8lab::cuda
