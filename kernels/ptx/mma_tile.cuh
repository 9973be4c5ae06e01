// PTX wrappers of mma.sync for every pair of types with FP32 or FP16 accumulators. Precondition:
// every lane of the warp calls them.
#pragma once

#include <cstdint>

#include "kernels/ptx/mma_types.hpp"

namespace fp8lab::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define FP8LAB_MMA_F32(types)                                                     \
  asm volatile("mma.sync.aligned." types                                          \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define FP8LAB_MMA_F16(types)                                                               \
  asm volatile("mma.sync.aligned." types " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" \
               : "+r"(d[0]), "+r"(d[1])                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

/// d (16, 8) += a (16, 32 bytes of K) b (8, 32 bytes of K)^T, one instruction: m16n8k32 for FP8,
/// m16n8k16 for 16-bit types, m16n8k8 for TF32. Registers of lane 4 g + t: a[i] has bytes 4 t + 16
/// (i / 2) to + 3 of row g + 8 (i % 2), b[i] bytes 4 t + 16 i to + 3 of row g. FP32 accumulators:
/// d[i] is (g + 8 (i / 2), 2 t + i % 2). FP16: d[i] has (g + 8 i, 2 t) in its lower half and
/// (g + 8 i, 2 t + 1) in the upper one (PTX ISA, mma). Precondition: the
/// architecture has it (MmaForm::architecture); elsewhere d stays as it is.
template <MmaTypes kTypes>
__device__ void multiply_tile(const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                              std::uint32_t (&d)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kTypes == MmaTypes::e4m3_e4m3_f32) {
    FP8LAB_MMA_F32("m16n8k32.row.col.f32.e4m3.e4m3.f32");
  } else if constexpr (kTypes == MmaTypes::e4m3_e5m2_f32) {
    FP8LAB_MMA_F32("m16n8k32.row.col.f32.e4m3.e5m2.f32");
  } else if constexpr (kTypes == MmaTypes::e5m2_e4m3_f32) {
    FP8LAB_MMA_F32("m16n8k32.row.col.f32.e5m2.e4m3.f32");
  } else if constexpr (kTypes == MmaTypes::e5m2_e5m2_f32) {
    FP8LAB_MMA_F32("m16n8k32.row.col.f32.e5m2.e5m2.f32");
  } else if constexpr (kTypes == MmaTypes::e4m3_e4m3_f16) {
    FP8LAB_MMA_F16("m16n8k32.row.col.f16.e4m3.e4m3.f16");
  } else if constexpr (kTypes == MmaTypes::e5m2_e5m2_f16) {
    FP8LAB_MMA_F16("m16n8k32.row.col.f16.e5m2.e5m2.f16");
  }
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kTypes == MmaTypes::bf16_f32) {
    FP8LAB_MMA_F32("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (kTypes == MmaTypes::f16_f32) {
    FP8LAB_MMA_F32("m16n8k16.row.col.f32.f16.f16.f32");
  } else if constexpr (kTypes == MmaTypes::f16_f16) {
    FP8LAB_MMA_F16("m16n8k16.row.col.f16.f16.f16.f16");
  } else if constexpr (kTypes == MmaTypes::tf32_f32) {
    FP8LAB_MMA_F32("m16n8k8.row.col.f32.tf32.tf32.f32");
  }
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#undef FP8LAB_MMA_F32
#undef FP8LAB_MMA_F16
#endif

}  // namespace fp8lab::cuda
