// The operations of emulation/ops in double precision: every real tensor is f64 and every operation
// is the textbook formula. Recipes are read but not applied. No arithmetic is shared with the
// emulator.
#pragma once

#include "emulation/ops/list.hpp"

namespace fp8lab::truth {

/// The reason for which ops::MeasureOperand is refused.
inline constexpr const char* kNoStatistics =
    "backend 'truth' quantizes nothing, so it has no operand statistics";

#define FP8LAB_OPERATION(Name) void run(const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab::truth
