// Statistics of the two orientations of a tensor.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::MeasureBoth in one pass over the source. Precondition: is_one_pass(op).
void measure_both(Context& context, const ops::MeasureBoth& op);

}  // namespace fp8lab::cuda
