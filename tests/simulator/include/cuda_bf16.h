// bfloat16 of the CUDA toolkit, for the simulator.
#pragma once

#include <cuda_runtime.h>

#include "emulation/numerics/codec.hpp"

// NOLINTBEGIN: names of CUDA C++
struct __nv_bfloat16 {
  std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {fp8lab::numerics::to_bf16(value)}; }
inline std::uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline float __bfloat162float(__nv_bfloat16 value) {
  return fp8lab::numerics::from_bf16(value.bits);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) {
  return __floats2bfloat162_rn(pair.x, pair.y);
}
inline __nv_bfloat162 __float2bfloat162_rn(float value) {
  return __floats2bfloat162_rn(value, value);
}
inline float __low2float(__nv_bfloat162 pair) { return __bfloat162float(pair.x); }
inline float __high2float(__nv_bfloat162 pair) { return __bfloat162float(pair.y); }

/// The larger number; the other one where one is NaN; +0 above -0.
inline __nv_bfloat16 fp8lab_larger(__nv_bfloat16 a, __nv_bfloat16 b) {
  const float x = __bfloat162float(a), y = __bfloat162float(b);
  if (x != x && y != y) return {0x7FFF};
  if (x != x) return b;
  if (y != y) return a;
  if (x == y) return std::signbit(x) ? b : a;
  return x < y ? b : a;
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {fp8lab_larger(a.x, b.x), fp8lab_larger(a.y, b.y)};
}
/// The smaller number; NaN where one is NaN; -0 below +0.
inline __nv_bfloat16 fp8lab_smaller_or_nan(__nv_bfloat16 a, __nv_bfloat16 b) {
  const float x = __bfloat162float(a), y = __bfloat162float(b);
  if (x != x || y != y) return {0x7FFF};
  if (x == y) return std::signbit(x) ? a : b;
  return x < y ? a : b;
}
inline __nv_bfloat162 __hmin2_nan(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {fp8lab_smaller_or_nan(a.x, b.x), fp8lab_smaller_or_nan(a.y, b.y)};
}
// NOLINTEND
