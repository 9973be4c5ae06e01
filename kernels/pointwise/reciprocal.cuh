// Reciprocals of numbers far from the ends of the exponent range, bit for bit like the
// compiler's division. They leave out its branch for other numbers, which would
// serialize the elements of a group.
#pragma once

#include "emulation/numerics/exact_math.hpp"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

inline constexpr float kSmallestDivisor = 0x1p-125f, kLargestDivisor = 0x1p126f;

/// Returns 1 / x, rounded to nearest even. Precondition: kSmallestDivisor <= x < kLargestDivisor,
/// so that the result is a normal number. `validate codec` compares all of them.
__device__ inline float reciprocal(float x) {
  const float r = approximate_reciprocal(x);
  return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
}

/// Returns true if 2^kLow <= x < 2^kHigh.
template <int kLow, int kHigh>
__device__ bool lies_between(float x) {
  constexpr auto field = [](int exponent) {
    return static_cast<std::uint32_t>(127 + exponent) << 23;
  };
  constexpr std::uint32_t kFirst = field(kLow), kLast = field(kHigh);
  return numerics::float_bits(x) - kFirst < kLast - kFirst;
}

}  // namespace fp8lab::cuda
