// Statistics of the two orientations of a tensor.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// ops::MeasureBoth in one reading of the source; false, and nothing done, where none is made for
/// it: both operands are the source itself, or codes of one format, the first in rows of the source
/// and the second in columns, as statistics_panel.cuh takes them.
bool measure_both(Context& context, const ops::MeasureBoth& op);

}  // namespace fp8lab::cuda
