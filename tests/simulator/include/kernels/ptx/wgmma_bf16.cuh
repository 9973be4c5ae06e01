// What kernels/ptx/wgmma_bf16.cuh declares, for the simulator.
#pragma once

#include "emulation/numerics/codec.hpp"
#include "kernels/ptx/wgmma.cuh"

namespace fp8lab::cuda {

inline std::uint32_t pack_bf16(float low, float high) {
  return numerics::to_bf16(low) | std::uint32_t{numerics::to_bf16(high)} << 16;
}

template <int kN, bool kRowsA, bool kRowsB>
inline void wgmma_bf16(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool add) {
  simulator::issue({WgmmaTypes::bf16, kN, add, kRowsA, kRowsB, a, b}, d, nullptr);
}
template <int kN, bool kRowsB>
inline void wgmma_bf16(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  simulator::issue({WgmmaTypes::bf16, kN, add, false, kRowsB, 0, b, true}, d, a);
}

}  // namespace fp8lab::cuda
