// The operations of emulation/ops on the device, with the bits that their headers define.
//
// Each function launches on context.stream() and returns. It throws Error for invalid
// shapes and types, with the message of the CPU backend, and sets a Fault for bad data
// that only the device sees.
#pragma once

#include "emulation/ops/list.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

#define FP8LAB_OPERATION(Name) void run(Context& context, const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab::cuda
