// What kernels/ptx/mma_sync.cuh declares, for the simulator.
#pragma once

#include <cstdint>

#include "tests/simulator/tensor_core.hpp"

namespace fp8lab::cuda {

inline void load_matrices(const std::uint16_t* row, std::uint32_t (&x)[4]) {
  simulator::load_matrices(row, x, false);
}
inline void load_matrices_transposed(const std::uint16_t* row, std::uint32_t (&x)[4]) {
  simulator::load_matrices(row, x, true);
}
inline void multiply_group(const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                           float (&d)[4]) {
  simulator::multiply_in_warp(a, b0, b1, d);
}

}  // namespace fp8lab::cuda
