// What kernels/ptx/mma_tile.cuh declares, for the simulator.
#pragma once

#include <cstdint>

#include "kernels/ptx/mma_types.hpp"
#include "tests/simulator/tensor_core.hpp"

namespace fp8lab::cuda {

template <MmaTypes kTypes>
void multiply_tile(const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                   std::uint32_t (&d)[4]) {
  simulator::multiply_tile_in_warp(static_cast<int>(kTypes), a, b, d);
}

}  // namespace fp8lab::cuda
