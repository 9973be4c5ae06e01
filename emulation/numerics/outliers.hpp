// Values beyond the bounds of a clamp, and what the clamp takes from them.
#pragma once

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Bounds of the outlier clamp of FP4 training (Wang et al. 2025, section 3.2), lower <= upper.
struct ClampBounds {
  float lower = 0.0f;
  float upper = 0.0f;
};

/// The nearest number within the bounds; a NaN stays.
FP8LAB_HD constexpr float clamped(const ClampBounds& bounds, float x) {
  return x < bounds.lower ? bounds.lower : x > bounds.upper ? bounds.upper : x;
}

/// RN(x - clamped(x)): what the clamp takes away, +0 within the bounds and for NaN.
FP8LAB_HD constexpr float clamp_residual(const ClampBounds& bounds, float x) {
  return x < bounds.lower ? x - bounds.lower : x > bounds.upper ? x - bounds.upper : 0.0f;
}

FP8LAB_NUMERICS_END
