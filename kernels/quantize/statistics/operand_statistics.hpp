// Statistics of the two orientations of a tensor.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Computes ops::MeasureBoth in one pass over the source. Returns false, and does nothing, if there
/// is no fused kernel for the operands. There is one if both operands are the source itself, or if
/// both hold codes of one format, the first in rows of the source and the second in columns, within
/// the limits of statistics_panel.cuh.
bool measure_both(Context& context, const ops::MeasureBoth& op);

}  // namespace fp8lab::cuda
