// The clamp of outliers between two quantiles, and the product of what it takes away.
#pragma once

#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/compensate.hpp"

namespace fp8lab::reference {

/// The bounds of a clamp of `source` (R, C), bf16 or f32: of its n elements that are no NaN, in
/// ascending order s[0], ..., s[n-1] with -0 before +0, lower = s[c] and upper = s[n - 1 - c] with
/// c = floor((1 - quantile) n + 1/2), at most (n - 1) / 2. So at most c elements lie beyond each
/// bound. {0, 0} where n = 0.
numerics::ClampBounds clamp_bounds(const TensorView& source, double quantile);

/// The bounds that quantize has written. Throws Error when the operand has no f32 (1, 2) for them.
numerics::ClampBounds clamp_bounds_of(const QuantizedOperand& operand);

/// What the operation says.
void compensate(const ops::Compensate& op);

}  // namespace fp8lab::reference
