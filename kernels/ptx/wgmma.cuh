// The warpgroup matrix instruction of sm_90a: PTX ISA 8.x, section "wgmma".
#pragma once

#include <cstdint>

#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma_types.hpp"

namespace fp8lab::cuda {

/// Returns the descriptor of an operand tile in lines of 128 bytes in the 128-byte swizzle; groups
/// of 8 lines are 1024 bytes apart.
///   K contiguous:    a line holds 128 bytes of K of one row.
///   rows contiguous: a line holds one k of 64 rows (bf16); 64 lines make a block of 64 x 64, and
///                    blocks along the rows follow each other (leading offset).
template <bool kByRows>
__device__ inline std::uint64_t operand_descriptor(const void* tile) {
  constexpr std::uint64_t kStrideOffset = 1024 >> 4;
  constexpr std::uint64_t kLeadingOffset = kByRows ? 8192 >> 4 : 0;
  constexpr std::uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3FFFFu) >> 4) | kLeadingOffset << 16 | kStrideOffset << 32 |
         kSwizzle128 << 62;
}
/// Returns the part of a descriptor that says where a tile starts, in units of 16 bytes.
__device__ inline std::uint32_t descriptor_low(const void* tile) {
  return (shared_address(tile) & 0x3FFFFu) >> 4;
}
/// Returns the descriptor of a tile of codes whose lines of kLineBytes bytes of K, one for each
/// row, are in the swizzle of that width; groups of 8 lines follow each other. `low`:
/// descriptor_low of a multiple of 8 lines, plus 2 for each 32 bytes along K.
template <int kLineBytes>
__device__ inline std::uint64_t line_descriptor(std::uint32_t low) {
  static_assert(kLineBytes == 64 || kLineBytes == 128);
  constexpr std::uint32_t kStrideOffset = 8 * kLineBytes >> 4;
  constexpr std::uint32_t kSwizzle = kLineBytes == 128 ? 1 : 2;
  return low | std::uint64_t{kStrideOffset | kSwizzle << 30} << 32;
}
/// Increment of a descriptor for one instruction along K: 32 bytes of a line, or 16 lines.
template <bool kByRows>
constexpr std::uint64_t kDescriptorStep = kByRows ? 16 * 128 >> 4 : 32 >> 4;

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` committed groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving accesses of an accumulator across wgmma instructions.
template <int kCount>
__device__ inline void keep(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ inline void keep(int (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}
/// As above, for A in registers: before the instructions that read it, and after the wait for them.
template <int kSteps>
__device__ inline void keep(std::uint32_t (&values)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(values[i / 4][i % 4])::"memory");
}

// `kind` is the constraint of an element of D, `tail` the text after the predicate.
#define FP8LAB_R8(kind, i)                                                                    \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), \
      kind(d[i + 6]), kind(d[i + 7])
#define FP8LAB_R32(kind, i) \
  FP8LAB_R8(kind, i), FP8LAB_R8(kind, i + 8), FP8LAB_R8(kind, i + 16), FP8LAB_R8(kind, i + 24)
#define FP8LAB_WGMMA_128(kind, types, tail)                                              \
  asm volatile(                                                                          \
      "{\n"                                                                              \
      ".reg .pred add;\n"                                                                \
      "setp.ne.b32 add, %66, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n128" types                                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, add" tail                                                            \
      ";\n"                                                                              \
      "}\n"                                                                              \
      : FP8LAB_R32(kind, 0), FP8LAB_R32(kind, 32)                                        \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))
#define FP8LAB_WGMMA_160(kind, types, tail)                                                 \
  asm volatile(                                                                             \
      "{\n"                                                                                 \
      ".reg .pred add;\n"                                                                   \
      "setp.ne.b32 add, %82, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n160" types                                          \
      " {"                                                                                  \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "    \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "    \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "    \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"      \
      "}, %80, %81, add" tail                                                               \
      ";\n"                                                                                 \
      "}\n"                                                                                 \
      : FP8LAB_R32(kind, 0), FP8LAB_R32(kind, 32), FP8LAB_R8(kind, 64), FP8LAB_R8(kind, 72) \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))
#define FP8LAB_WGMMA_192(kind, types, tail)                                              \
  asm volatile(                                                                          \
      "{\n"                                                                              \
      ".reg .pred add;\n"                                                                \
      "setp.ne.b32 add, %98, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n192" types                                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"   \
      "}, %96, %97, add" tail                                                            \
      ";\n"                                                                              \
      "}\n"                                                                              \
      : FP8LAB_R32(kind, 0), FP8LAB_R32(kind, 32), FP8LAB_R32(kind, 64)                  \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))
#define FP8LAB_WGMMA_256(kind, types, tail)                                                        \
  asm volatile(                                                                                    \
      "{\n"                                                                                        \
      ".reg .pred add;\n"                                                                          \
      "setp.ne.b32 add, %130, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n256" types                                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, %128, %129, add" tail                                                                    \
      ";\n"                                                                                        \
      "}\n"                                                                                        \
      : FP8LAB_R32(kind, 0), FP8LAB_R32(kind, 32), FP8LAB_R32(kind, 64), FP8LAB_R32(kind, 96)      \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))
#define FP8LAB_WGMMA(n)                                          \
  if constexpr (kTypes == WgmmaTypes::e4m3_e4m3) {               \
    FP8LAB_WGMMA_##n("+f", "k32.f32.e4m3.e4m3", ", 1, 1");       \
  } else if constexpr (kTypes == WgmmaTypes::e4m3_e5m2) {        \
    FP8LAB_WGMMA_##n("+f", "k32.f32.e4m3.e5m2", ", 1, 1");       \
  } else if constexpr (kTypes == WgmmaTypes::e5m2_e4m3) {        \
    FP8LAB_WGMMA_##n("+f", "k32.f32.e5m2.e4m3", ", 1, 1");       \
  } else if constexpr (kTypes == WgmmaTypes::e5m2_e5m2) {        \
    FP8LAB_WGMMA_##n("+f", "k32.f32.e5m2.e5m2", ", 1, 1");       \
  } else if constexpr (kTypes == WgmmaTypes::s8) {               \
    FP8LAB_WGMMA_##n("+r", "k32.s32.s8.s8", "");                 \
  } else if constexpr (kOrders == WgmmaOrders::k_k) {            \
    FP8LAB_WGMMA_##n("+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0"); \
  } else if constexpr (kOrders == WgmmaOrders::k_rows) {         \
    FP8LAB_WGMMA_##n("+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 1"); \
  } else {                                                       \
    FP8LAB_WGMMA_##n("+f", "k16.f32.bf16.bf16", ", 1, 1, 1, 1"); \
  }

/// d (64, kN) = a (64, 32 bytes of K) b (kN, 32 bytes of K)^T + (add ? d : 0).
template <WgmmaTypes kTypes, int kN, WgmmaOrders kOrders = WgmmaOrders::k_k>
__device__ void wgmma(WgmmaSum<kTypes> (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(kN == 128 || kN == 160 || kN == 192 || kN == 256);
  static_assert(kTypes == WgmmaTypes::bf16 || kOrders == WgmmaOrders::k_k);
  if constexpr (kN == 128) {
    FP8LAB_WGMMA(128)
  } else if constexpr (kN == 160) {
    FP8LAB_WGMMA(160)
  } else if constexpr (kN == 192) {
    FP8LAB_WGMMA(192)
  } else {
    FP8LAB_WGMMA(256)
  }
}

#undef FP8LAB_WGMMA
#undef FP8LAB_WGMMA_128
#undef FP8LAB_WGMMA_160
#undef FP8LAB_WGMMA_192
#undef FP8LAB_WGMMA_256
#undef FP8LAB_R32
#undef FP8LAB_R8

}  // namespace fp8lab::cuda
