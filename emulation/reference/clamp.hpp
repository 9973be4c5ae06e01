// The clamp of outliers between two quantiles, and the product of the clamp's residual.
#pragma once

#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/gemm/compensate.hpp"

namespace fp8lab::reference {

/// Returns the bounds of a clamp of `source` (R, C), bf16 or f32. Let s[0], ..., s[n-1] be its n
/// elements other than NaN in ascending order, with -0 before +0. Then lower = s[c] and
/// upper = s[n - 1 - c] with c = floor((1 - quantile) n + 1/2), at most (n - 1) / 2. So at most c
/// elements lie beyond each bound. Returns {0, 0} if n = 0.
numerics::ClampBounds clamp_bounds(const TensorView& source, double quantile);

/// Returns the bounds that quantize has written. Throws Error if the operand has no
/// f32 (1, 2) tensor for them.
numerics::ClampBounds clamp_bounds_of(const QuantizedOperand& operand);

/// Implements ops::Compensate.
void compensate(const ops::Compensate& op);

}  // namespace fp8lab::reference
