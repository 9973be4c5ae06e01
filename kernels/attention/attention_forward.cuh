// The seam between the two ways of computing the forward pass.
#pragma once

#include "kernels/attention/attention.cuh"

namespace fp8lab::cuda {

/// Whether attention_forward_wgmma takes a call: bf16 in and out, heads of 64 or 128 columns, kv
/// tiles of 64 keys, tensors whose rows are 16-byte aligned.
bool fits_wgmma(const ops::AttentionForward& op, const AttentionProblem& problem);

/// The same of attention_cached_wgmma.
bool fits_wgmma(const TensorView& q, const TensorView& k_cache, const TensorView& v_cache,
                const TensorView& out, const AttentionProblem& problem);

/// Attention of new tokens that have been appended to the caches. Sequences whose counts do not fit
/// are left alone.
void attention_cached_wgmma(Context& context, const TensorView& q, const TensorView& k_cache,
                            const TensorView& v_cache, const TensorView& out,
                            const AttentionProblem& problem, const NewTokens& tokens);

/// The forward pass on wgmma. Reads no problem.block_start and reports bad document starts itself.
void attention_forward_wgmma(Context& context, const ops::AttentionForward& op,
                             const AttentionProblem& problem);

}  // namespace fp8lab::cuda
