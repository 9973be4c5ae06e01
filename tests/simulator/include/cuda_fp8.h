// FP8 conversions of the CUDA toolkit, for the simulator: by the codec that `validate codec` has
// compared with the instructions for all 2^32 floats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// NOLINTBEGIN: names of CUDA C++
using __nv_fp8_storage_t = std::uint8_t;
using __nv_fp8x2_storage_t = std::uint16_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline fp8lab::numerics::FormatSpec fp8lab_format(__nv_fp8_interpretation_t format) {
  return format == __NV_E4M3 ? fp8lab::numerics::kE4M3 : fp8lab::numerics::kE5M2;
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t format) {
  using namespace fp8lab::numerics;
  return static_cast<__nv_fp8_storage_t>(
      encode(fp8lab_format(format), float_bits(value), Rounding::nearest,
             saturation == __NV_SATFINITE ? Overflow::saturate : Overflow::special));
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 pair, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t format) {
  return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_float_to_fp8(pair.x, saturation, format) |
                                           __nv_cvt_float_to_fp8(pair.y, saturation, format) << 8);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t code,
                                          __nv_fp8_interpretation_t format) {
  using namespace fp8lab::numerics;
  return {static_cast<std::uint16_t>(encode(kFP16, decode_bits(fp8lab_format(format), code),
                                            Rounding::nearest, Overflow::special))};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t codes,
                                              __nv_fp8_interpretation_t format) {
  return {__nv_cvt_fp8_to_halfraw(static_cast<std::uint8_t>(codes), format).x,
          __nv_cvt_fp8_to_halfraw(static_cast<std::uint8_t>(codes >> 8), format).x};
}
// NOLINTEND
