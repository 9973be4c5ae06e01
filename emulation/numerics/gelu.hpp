// GELU in its tanh form, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), written as
// x * sigmoid(2 sqrt(2 / pi) * (x + 0.044715 * x^3)), which is the same function.
#pragma once

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr float kGeluLinear = 0x1.988454p+0f;      ///< 2 sqrt(2 / pi), nearest FP32
inline constexpr float kGeluCubic = 0x1.2444f2p-4f;       ///< 2 sqrt(2 / pi) * 0.044715
inline constexpr float kGeluCubicSlope = 0x1.b6676cp-3f;  ///< 2 sqrt(2 / pi) * 0.044715 * 3

/// Returns the argument of the logistic function. Infinite if x * x overflows; NaN only for NaN.
FP8LAB_HD inline float gelu_argument(float x) { return x * (kGeluLinear + (kGeluCubic * (x * x))); }

/// Returns the derivative of GELU at x, where sig is sigmoid(gelu_argument(x)). The powers of x
/// multiply the small sig * (1 - sig) one after the other: if x * x would overflow, that is 0 and
/// the result is 0 or 1.
FP8LAB_HD inline float gelu_slope(float x, float sig) {
  const float first = x * (sig * (1.0f - sig));
  const float third = (first * x) * x;
  return sig + ((first * kGeluLinear) + (third * kGeluCubicSlope));
}

/// Returns GELU, the product rounded. -infinity gives NaN, as in silu.
FP8LAB_HD inline float gelu(float x) { return canonical_nan(x * sigmoid(gelu_argument(x))); }

FP8LAB_NUMERICS_END
