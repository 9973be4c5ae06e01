// What kernels/ptx/wgmma.cuh declares, for the simulator.
#pragma once

#include <cstdint>

#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma_types.hpp"
#include "tests/simulator/tensor_core.hpp"

namespace fp8lab::cuda {

template <bool kByRows>
inline std::uint64_t operand_descriptor(const void* tile) {
  constexpr std::uint64_t kStrideOffset = 1024 >> 4;
  constexpr std::uint64_t kLeadingOffset = kByRows ? 8192 >> 4 : 0;
  constexpr std::uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3FFFFu) >> 4) | kLeadingOffset << 16 | kStrideOffset << 32 |
         kSwizzle128 << 62;
}
inline std::uint32_t descriptor_low(const void* tile) {
  return (shared_address(tile) & 0x3FFFFu) >> 4;
}
template <int kLineBytes>
inline std::uint64_t line_descriptor(std::uint32_t low) {
  static_assert(kLineBytes == 64 || kLineBytes == 128);
  constexpr std::uint32_t kStrideOffset = 8 * kLineBytes >> 4;
  constexpr std::uint32_t kSwizzle = kLineBytes == 128 ? 1 : 2;
  return low | std::uint64_t{kStrideOffset | kSwizzle << 30} << 32;
}
template <bool kByRows>
constexpr std::uint64_t kDescriptorStep = kByRows ? 16 * 128 >> 4 : 32 >> 4;

inline void wgmma_fence() {}
inline void wgmma_commit() { simulator::commit_products(); }
template <int kPending>
inline void wgmma_wait() {
  simulator::wait_for_products(kPending);
}
template <int kCount>
inline void keep(float (&)[kCount]) {}
template <int kCount>
inline void keep(int (&)[kCount]) {}
template <int kSteps>
inline void keep(std::uint32_t (&)[kSteps][4]) {}

template <WgmmaTypes kTypes, int kN, WgmmaOrders kOrders = WgmmaOrders::k_k>
void wgmma(WgmmaSum<kTypes> (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool add) {
  simulator::issue({kTypes, kN, add, a_by_rows(kOrders), b_by_rows(kOrders), a, b}, d, nullptr);
}

}  // namespace fp8lab::cuda
