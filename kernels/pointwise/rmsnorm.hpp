// RMS norms of the residual stream in one pass: the whole norm, or only its rstd.
#pragma once

#include "emulation/ops/pointwise/add_norm.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

// The preconditions are the table of fusions (kernels/plan/fusion.hpp).

/// Computes ops::AddRmsNormForward for whole rows of bf16 that a block can hold.
void add_rmsnorm(Context& context, const ops::AddRmsNormForward& op);
/// Compute rstd but not y, under the same conditions; the second one also stores the sum.
void find_rstd(Context& context, const ops::RmsNormForward& op);
void find_rstd(Context& context, const ops::AddRmsNormForward& op);

/// Computes ops::RmsNormBackwardAdd for whole aligned rows of bf16 with at most numerics::kSumChunk
/// columns. Does not store dx.
void rmsnorm_backward_add(Context& context, const ops::RmsNormBackwardAdd& op);

}  // namespace fp8lab::cuda
