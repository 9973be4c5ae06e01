// Dynamic tanh (Zhu et al. 2025, arXiv:2503.10622): tanh(alpha x) with one trained number alpha, in
// place of a norm.
#pragma once

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/xielu.hpp"

FP8LAB_NUMERICS_BEGIN

/// tanh(x) as -e / (2 + e), e = expm1_of_negative(-2 |x|), with the sign of x; every operation
/// rounded. Relative error below 4 * 2^-24 (every 37th FP32 value was
/// compared with FP64); 1 from |x| = 9.1 on.
FP8LAB_HD inline float tanh(float x) {
  const float magnitude = bits_float(float_bits(x) & 0x7FFFFFFFu);
  const float e = expm1_of_negative(-2.0f * magnitude);
  const float result = (0.0f - e) / (2.0f + e);
  return bits_float(float_bits(result) | (float_bits(x) & 0x80000000u));
}

FP8LAB_HD inline float dynamic_tanh(float x, float alpha) { return canonical_nan(tanh(alpha * x)); }

/// dout times the derivatives of dynamic_tanh: d = dout * (1 - y * y), y = tanh(alpha * x).
struct DynamicTanhSlopes {
  float by_x = 0.0f;      ///< alpha * d
  float by_alpha = 0.0f;  ///< d * x
};
FP8LAB_HD inline DynamicTanhSlopes dynamic_tanh_slopes(float x, float alpha, float dout) {
  const float y = tanh(alpha * x);
  const float d = dout * (1.0f - (y * y));
  return {alpha * d, d * x};
}

FP8LAB_NUMERICS_END
