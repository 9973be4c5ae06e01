// RMS norms at the residual stream in one reading, whole or as far as their rstd.
#pragma once

#include "emulation/ops/add_norm.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

// Each is false, and has done nothing, where no kernel is made for the operation.

/// Whole rows of bf16 that a block holds.
bool add_rmsnorm(Context& context, const ops::AddRmsNormForward& op);
/// The same without y: rstd, and of a sum the sum before it.
bool find_rstd(Context& context, const ops::RmsNormForward& op);
bool find_rstd(Context& context, const ops::AddRmsNormForward& op);

/// Whole aligned rows of bf16, of at most numerics::kSumChunk columns; dx is not stored.
bool rmsnorm_backward_add(Context& context, const ops::RmsNormBackwardAdd& op);

}  // namespace fp8lab::cuda
