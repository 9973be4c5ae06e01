// The instructions of sm_90a that C++ has no name for: barriers, bulk tensor copies and wgmma.
// PTX ISA 8.x, sections "mbarrier", "cp.async.bulk.tensor" and "wgmma".
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fp8lab::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarrier -----------------------------------------------------------------------------------

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
/// Makes initialised barriers visible to the asynchronous proxy.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives and announces `bytes` of copies that will complete on the barrier.
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Waits until the phase of the given parity is complete.
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// --- bulk tensor copy ---------------------------------------------------------------------------

/// Box at (x, y) of a two-dimensional tensor map into shared memory; elements outside are zeros.
__device__ inline void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier,
                                int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
/// `bytes` (a multiple of 16) from global to shared memory, both 16-byte aligned.
__device__ inline void copy_bytes(void* destination, const void* source, std::uint32_t bytes,
                                  std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- registers of a warpgroup -------------------------------------------------------------------

template <int kRegisters>
__device__ inline void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- wgmma --------------------------------------------------------------------------------------

/// Descriptor of a K-major operand tile with rows of 128 bytes in the 128-byte swizzle: groups of 8
/// rows are 1024 bytes apart. Adding 2 moves 32 bytes along K.
__device__ inline std::uint64_t operand_descriptor(const void* tile) {
  constexpr std::uint64_t kStrideOffset = 1024 >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3FFFFu) >> 4) | kStrideOffset << 32 | kSwizzle128 << 62;
}

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

#define FP8LAB_R8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FP8LAB_R64(d)                                                                     \
  FP8LAB_R8(d, 0), FP8LAB_R8(d, 8), FP8LAB_R8(d, 16), FP8LAB_R8(d, 24), FP8LAB_R8(d, 32), \
      FP8LAB_R8(d, 40), FP8LAB_R8(d, 48), FP8LAB_R8(d, 56)
#define FP8LAB_WGMMA_N128(shape_and_types, tail)                                          \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred add;\n"                                                                 \
      "setp.ne.b32 add, %66, 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned." shape_and_types                                     \
      " {"                                                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, add, 1, 1" tail                                                          \
      ";\n"                                                                               \
      "}\n"                                                                               \
      : FP8LAB_R64(d)                                                                     \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))

/// Element types of one wgmma: bytes, products of one instruction, and the instruction itself:
/// d (64, 128) = a (64, K) b (128, K)^T + (add ? d : 0).
struct MultiplyE4M3E4M3 {
  static constexpr int kBytes = 1;
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    FP8LAB_WGMMA_N128("m64n128k32.f32.e4m3.e4m3", "");
  }
};
struct MultiplyE4M3E5M2 {
  static constexpr int kBytes = 1;
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    FP8LAB_WGMMA_N128("m64n128k32.f32.e4m3.e5m2", "");
  }
};
struct MultiplyE5M2E4M3 {
  static constexpr int kBytes = 1;
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    FP8LAB_WGMMA_N128("m64n128k32.f32.e5m2.e4m3", "");
  }
};
struct MultiplyE5M2E5M2 {
  static constexpr int kBytes = 1;
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    FP8LAB_WGMMA_N128("m64n128k32.f32.e5m2.e5m2", "");
  }
};
struct MultiplyBf16 {
  static constexpr int kBytes = 2;
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
    FP8LAB_WGMMA_N128("m64n128k16.f32.bf16.bf16", ", 0, 0");
  }
};

#undef FP8LAB_WGMMA_N128
#undef FP8LAB_R64
#undef FP8LAB_R8

}  // namespace fp8lab::cuda
