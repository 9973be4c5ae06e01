// Interface between the implementations of the forward pass on quantized operands.
#pragma once

#include "kernels/attention/quantized_tiles.cuh"

namespace fp8lab::cuda {

/// Returns true if quantized_forward_wgmma supports the call: q, k, v and P in E4M3 with bf16
/// arithmetic between, one scale of k in each kv tile, a static scale of P, heads of 64 or 128
/// columns, kv tiles of 64 keys, bf16 out, tensors with 16-byte aligned rows.
bool fits_wgmma(const ops::QuantizedAttentionForward& op, const AttentionProblem& problem);

/// Returns the size in bytes of the memory for the codes of v as the tensor core reads them.
std::size_t arranged_values_bytes(const AttentionProblem& problem);

/// Arranges the codes of v in `arranged` and computes the forward pass on wgmma, unless v has a
/// code that is not finite: then `special` becomes 1 and neither out nor lse is written, because
/// masked keys would show in other queries than the definition has it. Precondition: `arranged` is
/// aligned to 16 bytes; problem.block_start is filled.
void quantized_forward_wgmma(Context& context, const ops::QuantizedAttentionForward& op,
                             const AttentionProblem& problem, void* arranged,
                             std::uint32_t* special);

}  // namespace fp8lab::cuda
