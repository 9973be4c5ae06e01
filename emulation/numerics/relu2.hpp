// The square of a rectified number.
#pragma once

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Returns +0 for x <= 0 and otherwise x * x, which is infinite beyond 2^64; NaN for NaN.
FP8LAB_HD inline float relu2(float x) { return x <= 0.0f ? 0.0f : canonical_nan(x * x); }

/// Returns dout times the derivative at x: +0 for x <= 0, whatever dout is, otherwise
/// dout * (x + x).
FP8LAB_HD inline float relu2_gradient(float x, float dout) {
  return x <= 0.0f ? 0.0f : canonical_nan(dout * (x + x));
}

FP8LAB_NUMERICS_END
