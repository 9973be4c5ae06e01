// binary16 of the CUDA toolkit, for the simulator.
#pragma once

#include <cuda_runtime.h>

#include "emulation/numerics/codec.hpp"

// NOLINTBEGIN: names of CUDA C++
struct __half_raw {
  std::uint16_t x;
};
struct __half2_raw {
  std::uint16_t x, y;
};
struct __half {
  std::uint16_t bits;
  __half(__half_raw raw) : bits(raw.x) {}
};
struct alignas(4) __half2 {
  std::uint16_t low, high;
  explicit __half2(__half2_raw raw) : low(raw.x), high(raw.y) {}
};
inline float fp8lab_f16(std::uint16_t bits) {
  return fp8lab::numerics::bits_float(fp8lab::numerics::decode_bits(fp8lab::numerics::kFP16, bits));
}
inline __half __float2half_rn(float value) {
  using namespace fp8lab::numerics;
  return __half_raw{static_cast<std::uint16_t>(
      encode(kFP16, float_bits(value), Rounding::nearest, Overflow::special))};
}
inline std::uint16_t __half_as_ushort(__half value) { return value.bits; }
inline float __half2float(__half value) { return fp8lab_f16(value.bits); }
inline float2 __half22float2(__half2 pair) { return {fp8lab_f16(pair.low), fp8lab_f16(pair.high)}; }
// NOLINTEND
