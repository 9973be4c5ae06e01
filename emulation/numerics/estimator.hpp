// Gradient estimators of quantizers: the factor of each element's gradient.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/format.hpp"

FP8LAB_NUMERICS_BEGIN

/// Replacements for the derivative of a quantizer, which is zero almost everywhere.
enum class EstimatorKind : std::uint8_t {
  straight_through,  ///< 1
  /// 1 within the range of the format, else 0 (QuEST and Quartet, arXiv:2505.14669).
  clip_mask,
  /// The derivative of a power curve through the step between two codes (DGE, arXiv:2501.17116).
  dge,
};

struct Estimator {
  EstimatorKind kind = EstimatorKind::straight_through;
  float steepness = 5.0f;  ///< dge: k
  float cap = 3.0f;        ///< dge: the largest factor

  constexpr bool operator==(const Estimator&) const = default;
  constexpr explicit operator bool() const { return kind != EstimatorKind::straight_through; }
};

/// Returns the derivative of DGE at `scaled`, a magnitude in units of the scale. Between the codes
/// low <= scaled < high, with u = |RN(RN(2 (scaled - low) / (high - low)) - 1)|, it is
/// min(RN(RN(1/k) * exp2(RN(RN(RN(1/k) - 1) * log2(u)))), cap): 1/k at a code, `cap` in the middle
/// between two, and 1 everywhere for k = 1. At the largest number and beyond it is that at a code.
FP8LAB_HD inline float dge_factor(const Estimator& estimator, FormatSpec format, float scaled) {
  const float slope = 1.0f / estimator.steepness;
  float factor = slope;
  if (scaled < max_finite(format)) {
    const std::uint32_t code = encode(format, float_bits(scaled), Rounding::toward_zero);
    float low = decode(format, code), high = decode(format, code + 1);
    if (scaled < low) {  // a format without numbers between zero and its first code
      high = low;
      low = 0.0f;
    }
    const float place = 2.0f * (scaled - low) / (high - low) - 1.0f;
    const float power = slope - 1.0f;
    const float u = place < 0.0f ? -place : place;
    factor = power == 0.0f ? 1.0f : slope * exp2(power * log2(u));
  }
  return factor < estimator.cap ? factor : estimator.cap;
}

/// Returns the factor of an element whose quantizer got RN(x / s), s being the decode scale of its
/// tile. A clip mask is 1 if the magnitude is below the largest number of `format`, and 0
/// otherwise, also for a NaN.
FP8LAB_HD inline float estimator_factor(const Estimator& estimator, FormatSpec format,
                                        float scaled) {
  const float magnitude = bits_float(float_bits(scaled) & 0x7FFFFFFFu);
  switch (estimator.kind) {
    case EstimatorKind::straight_through: return 1.0f;
    case EstimatorKind::clip_mask: return magnitude < max_finite(format) ? 1.0f : 0.0f;
    case EstimatorKind::dge: return dge_factor(estimator, format, magnitude);
  }
  return 1.0f;
}

FP8LAB_NUMERICS_END
