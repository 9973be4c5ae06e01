// The clamp of outliers, and its residual.
#pragma once

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Bounds of the outlier clamp of FP4 training (Wang et al. 2025, section 3.2), lower <= upper.
struct ClampBounds {
  float lower = 0.0f;
  float upper = 0.0f;
};

/// Returns the nearest number within the bounds; a NaN is unchanged.
FP8LAB_HD constexpr float clamped(const ClampBounds& bounds, float x) {
  return x < bounds.lower ? bounds.lower : x > bounds.upper ? bounds.upper : x;
}

/// Returns RN(x - clamped(x)): the residual of the clamp, +0 within the bounds and for NaN.
FP8LAB_HD constexpr float clamp_residual(const ClampBounds& bounds, float x) {
  return x < bounds.lower ? x - bounds.lower : x > bounds.upper ? x - bounds.upper : 0.0f;
}

FP8LAB_NUMERICS_END
