// What kernels/ptx/wgmma_attention.cuh declares, for the simulator.
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
inline void wgmma_e4m3(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
  simulator::issue({WgmmaTypes::e4m3_e4m3, 64, add, false, false, a, b}, d, nullptr);
}
template <int kN>
inline void wgmma_e4m3(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  simulator::issue({WgmmaTypes::e4m3_e4m3, kN, add, false, false, 0, b, true}, d, a);
}

}  // namespace fp8lab::cuda
