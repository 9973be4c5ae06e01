// Interface between the implementations of the forward pass.
#pragma once

#include "kernels/attention/attention.cuh"

namespace fp8lab::cuda {

/// Returns true if attention_forward_wgmma supports the call: bf16 in and out, heads of 64 or 128
/// columns, kv tiles of 64 keys, tensors with 16-byte aligned rows.
bool fits_wgmma(const ops::AttentionForward& op, const AttentionProblem& problem);

/// Returns true if attention_cached_wgmma supports the call, under the same conditions.
bool fits_wgmma(const TensorView& q, const TensorView& k_cache, const TensorView& v_cache,
                const TensorView& out, const AttentionProblem& problem);

/// Computes attention for new tokens. Precondition: they have been appended to the caches. Skips
/// sequences with invalid counts.
void attention_cached_wgmma(Context& context, const TensorView& q, const TensorView& k_cache,
                            const TensorView& v_cache, const TensorView& out,
                            const AttentionProblem& problem, const NewTokens& tokens);

/// Returns the token counts of `rows` new tokens of a cache.
NewTokens new_tokens(const AttentionProblem& problem, std::int64_t rows,
                     const TensorView& query_start, const TensorView& cached);

/// Copies the new tokens' rows of `source`, as bits, to `cache`, which has its type. Reports
/// sequences with invalid counts as Fault::cached_tokens and skips them.
void append_to_cache(Context& context, const NewTokens& tokens, const TensorView& source,
                     const TensorView& cache);

/// Computes the forward pass on wgmma. Does not read problem.block_start; reports
/// bad document starts itself.
void attention_forward_wgmma(Context& context, const ops::AttentionForward& op,
                             const AttentionProblem& problem);

}  // namespace fp8lab::cuda
