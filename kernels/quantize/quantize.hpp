// Quantization of one source for two operands.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/plan/quantize_plan.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::QuantizeBoth by the plan of plan_quantize_both, in which neither operand uses
/// random bits.
void quantize_both(Context& context, const ops::QuantizeBoth& op, const QuantizeBothPlan& plan);

}  // namespace fp8lab::cuda
