// Reciprocals of numbers far from the ends of the exponent range: what the compiler's division does
// there, bit for bit, without the branch for other numbers, which keeps the elements of a group
// apart.
#pragma once

#include "emulation/numerics/exact_math.hpp"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

inline constexpr float kSmallestDivisor = 0x1p-125f, kLargestDivisor = 0x1p126f;

/// 1 / x to nearest even for kSmallestDivisor <= x < kLargestDivisor, whose result is a normal
/// number. `validate codec` compares all of them.
__device__ inline float reciprocal(float x) {
  const float r = approximate_reciprocal(x);
  return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
}

/// True for 2^kLow <= x < 2^kHigh.
template <int kLow, int kHigh>
__device__ bool lies_between(float x) {
  constexpr auto field = [](int exponent) {
    return static_cast<std::uint32_t>(127 + exponent) << 23;
  };
  constexpr std::uint32_t kFirst = field(kLow), kLast = field(kHigh);
  return numerics::float_bits(x) - kFirst < kLast - kFirst;
}

}  // namespace fp8lab::cuda
