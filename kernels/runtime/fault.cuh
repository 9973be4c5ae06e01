// Reports of bad data from the device.
#pragma once

#include <cstdint>

#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Sets the bit of `fault` in the word of Context::faults().
__device__ inline void report(std::uint32_t* faults, Fault fault) {
  atomicOr(faults, static_cast<std::uint32_t>(fault));
}

}  // namespace fp8lab::cuda
