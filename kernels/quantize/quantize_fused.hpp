// Kernels that quantize the result of an operation while it is still in registers.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/plan/fusion.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::ProduceQuantize by a fused kernel, in fewer passes over the data than its parts
/// need. `plan` is that of plan_fusion(op); the table of fusions names the producers. Element-wise
/// producers in both orientations take one pass, and store the output itself only if
/// op.keeps_output. RMS norms in both orientations, also of a sum, take two passes, one for rstd
/// and the sum and one for the codes.
void produce_quantize(Context& context, const ops::ProduceQuantize& op, const ProducePlan& plan);

/// The kernels for both orientations.
void produce_quantize_both(Context& context, const ops::ProduceQuantize& op,
                           const ProducePlan& plan);

}  // namespace fp8lab::cuda
