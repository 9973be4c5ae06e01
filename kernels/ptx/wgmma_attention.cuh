// wgmma for attention, of BF16 or E4M3 operands: tiles of 64 rows by 64 or 128 columns with A from
// shared memory or registers, or by 8 columns with A from registers (PTX ISA 8.x, section "wgmma").
#pragma once

#include "kernels/ptx/wgmma.cuh"

namespace fp8lab::cuda {

// clang-format off
#define FP8LAB_R8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
// `types` are the shape along K and the formats, `tail` the text after the predicate.
#define FP8LAB_WGMMA_REGISTERS_8(types, tail) \
  asm volatile( \
      "{\n" \
      ".reg .pred add;\n" \
      "setp.ne.b32 add, %9, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n8" types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, " \
      "add" tail ";\n" \
      "}\n" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0), "n"(kRowsB ? 1 : 0))
#define FP8LAB_WGMMA_SHARED_64(types, tail) \
  asm volatile( \
      "{\n" \
      ".reg .pred add;\n" \
      "setp.ne.b32 add, %34, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64" types " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, add" tail ";\n" \
      "}\n" \
      : FP8LAB_R8(0), FP8LAB_R8(8), FP8LAB_R8(16), FP8LAB_R8(24) \
      : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kRowsA ? 1 : 0), "n"(kRowsB ? 1 : 0))
#define FP8LAB_WGMMA_REGISTERS_64(types, tail) \
  asm volatile( \
      "{\n" \
      ".reg .pred add;\n" \
      "setp.ne.b32 add, %37, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64" types " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, add" tail ";\n" \
      "}\n" \
      : FP8LAB_R8(0), FP8LAB_R8(8), FP8LAB_R8(16), FP8LAB_R8(24) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0), "n"(kRowsB ? 1 : 0))
#define FP8LAB_WGMMA_SHARED_128(types, tail) \
  asm volatile( \
      "{\n" \
      ".reg .pred add;\n" \
      "setp.ne.b32 add, %66, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128" types " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
      "}, %64, %65, add" tail ";\n" \
      "}\n" \
      : FP8LAB_R8(0), FP8LAB_R8(8), FP8LAB_R8(16), FP8LAB_R8(24), FP8LAB_R8(32), FP8LAB_R8(40), FP8LAB_R8(48), FP8LAB_R8(56) \
      : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kRowsA ? 1 : 0), "n"(kRowsB ? 1 : 0))
#define FP8LAB_WGMMA_REGISTERS_128(types, tail) \
  asm volatile( \
      "{\n" \
      ".reg .pred add;\n" \
      "setp.ne.b32 add, %69, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128" types " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
      "}, {%64, %65, %66, %67}, %68, add" tail ";\n" \
      "}\n" \
      : FP8LAB_R8(0), FP8LAB_R8(8), FP8LAB_R8(16), FP8LAB_R8(24), FP8LAB_R8(32), FP8LAB_R8(40), FP8LAB_R8(48), FP8LAB_R8(56) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0), "n"(kRowsB ? 1 : 0))
// clang-format on

/// Rounds two numbers to bf16 operands, NaN to 0x7FFF; `low` goes to the lower half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#define FP8LAB_BF16(shape, tail) FP8LAB_WGMMA_##shape("k16.f32.bf16.bf16", tail)
#define FP8LAB_E4M3(shape) FP8LAB_WGMMA_##shape("k32.f32.e4m3.e4m3", ", 1, 1")

/// Computes d (64, kN) = a (64, 16) b (kN, 16)^T + (add ? d : 0). The operands are
/// operand_descriptor<kRowsA> and <kRowsB>.
template <int kN, bool kRowsA, bool kRowsB>
__device__ inline void wgmma_bf16(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64) {
    FP8LAB_BF16(SHARED_64, ", 1, 1, %35, %36");
  } else {
    FP8LAB_BF16(SHARED_128, ", 1, 1, %67, %68");
  }
}

/// With A in registers: pairs of bf16 as in the fragment of mma.sync m16n8k16 for each of the
/// warpgroup's four warps (rows 16 w + lane / 4 and 8 below, columns 2 (lane % 4) and 8 on). The
/// registers must not change before the wait for the product.
template <int kN, bool kRowsB>
__device__ inline void wgmma_bf16(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                  bool add) {
  static_assert(kN == 8 || kN == 64 || kN == 128);
  if constexpr (kN == 8) {
    FP8LAB_BF16(REGISTERS_8, ", 1, 1, %10");
  } else if constexpr (kN == 64) {
    FP8LAB_BF16(REGISTERS_64, ", 1, 1, %38");
  } else {
    FP8LAB_BF16(REGISTERS_128, ", 1, 1, %70");
  }
}

/// Computes d (64, 64) = a (64, 32) b (64, 32)^T + (add ? d : 0) of E4M3 codes. The operands are
/// line_descriptor.
__device__ inline void wgmma_e4m3(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
  constexpr bool kRowsA = false, kRowsB = false;
  FP8LAB_E4M3(SHARED_64);
}

/// With A in registers: four codes as in the fragment of mma.sync m16n8k32 (rows 16 w + lane / 4
/// and 8 below, columns 4 (lane % 4) on and 16 further). Registers as above.
template <int kN>
__device__ inline void wgmma_e4m3(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                  bool add) {
  static_assert(kN == 8 || kN == 64 || kN == 128);
  constexpr bool kRowsB = false;
  if constexpr (kN == 8) {
    FP8LAB_E4M3(REGISTERS_8);
  } else if constexpr (kN == 64) {
    FP8LAB_E4M3(REGISTERS_64);
  } else {
    FP8LAB_E4M3(REGISTERS_128);
  }
}

#undef FP8LAB_BF16
#undef FP8LAB_E4M3
#undef FP8LAB_WGMMA_SHARED_64
#undef FP8LAB_WGMMA_SHARED_128
#undef FP8LAB_WGMMA_REGISTERS_8
#undef FP8LAB_WGMMA_REGISTERS_64
#undef FP8LAB_WGMMA_REGISTERS_128
#undef FP8LAB_R8

}  // namespace fp8lab::cuda
