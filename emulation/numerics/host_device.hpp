// Annotations and bit casts shared by the CPU emulator and the CUDA kernels.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FP8LAB_HD __host__ __device__
// Put before a template that calls its argument: the callee may exist on one side only.
#define FP8LAB_HD_TEMPLATE _Pragma("nv_exec_check_disable")
#else
#define FP8LAB_HD
#define FP8LAB_HD_TEMPLATE
#endif

// For small functions inside hot loops: a call that is not inlined there
// would keep the loop scalar.
#if defined(__CUDACC__)
#define FP8LAB_HD_INLINE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define FP8LAB_HD_INLINE [[gnu::always_inline]] inline
#else
#define FP8LAB_HD_INLINE inline
#endif

// The SIMD sources are compiled once per instruction set. Each compilation has its own inline
// namespace, so that the linker can never merge an AVX-512 copy of an inline function into code
// that must run without AVX-512.
#if !defined(FP8LAB_ISA)
#define FP8LAB_ISA isa_base
#endif

#define FP8LAB_NUMERICS_BEGIN  \
  namespace fp8lab::numerics { \
  inline namespace FP8LAB_ISA {
#define FP8LAB_NUMERICS_END \
  }                         \
  }

FP8LAB_NUMERICS_BEGIN

/// Returns the bits of an FP32 value. Uses the builtin, because nvcc warns about std::bit_cast.
FP8LAB_HD constexpr std::uint32_t float_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

/// Returns the FP32 value with the given bits.
FP8LAB_HD constexpr float bits_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// Returns the bits of an FP64 value.
FP8LAB_HD constexpr std::uint64_t double_bits(double value) {
  return __builtin_bit_cast(std::uint64_t, value);
}

/// Returns the FP64 value with the given bits.
FP8LAB_HD constexpr double bits_double(std::uint64_t bits) {
  return __builtin_bit_cast(double, bits);
}

FP8LAB_NUMERICS_END
