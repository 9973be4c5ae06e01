// xIELU (Huang and Schlag 2024, arXiv:2411.13010): an activation without a gate whose two
// curvatures are trained.
//   x > 0:  alpha_p x^2 + x / 2,  alpha_p = softplus(p)
//   x <= 0: alpha_n (expm1(x) - x) + x / 2,  alpha_n = 1/2 + softplus(n)
#pragma once

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr float kXieluBeta = 0.5f;  ///< slope at 0

/// log(1 + exp(x)) as max(x, 0) + log(1 + exp2(-|x| * log2 e)), every operation rounded.
/// Absolute error below 1.3e-7 for x <= 0.
FP8LAB_HD inline float softplus(float x) {
  const float magnitude = bits_float(float_bits(x) & 0x7FFFFFFFu);
  return (x > 0.0f ? x : 0.0f) + log(1.0f + exp2(magnitude * -0x1.715476p+0f));
}

/// exp(x) - 1 for x <= 0. Above -1/2 the sum of x^k / k! for k = 1 .. 8 by Horner's scheme with
/// fma, below exp2(x * log2 e) - 1. Relative error below 2.4 * 2^-24 (every third FP32 value was
/// compared with FP64).
FP8LAB_HD inline float expm1_of_negative(float x) {
  float p = 0x1.A01A02p-16f;  // 1 / 8!
  p = fused_multiply_add(p, x, 0x1.A01A02p-13f);
  p = fused_multiply_add(p, x, 0x1.6C16C2p-10f);
  p = fused_multiply_add(p, x, 0x1.111112p-7f);
  p = fused_multiply_add(p, x, 0x1.555556p-5f);
  p = fused_multiply_add(p, x, 0x1.555556p-3f);
  p = fused_multiply_add(p, x, 0.5f);
  const float near = fused_multiply_add(x * x, p, x);
  const float far = exp2(x * 0x1.715476p+0f) - 1.0f;
  return x > -0.5f ? near : far;
}

/// The two curvatures.
struct XieluFactors {
  float alpha_p = 0.0f, alpha_n = 0.0f;
};
/// From the trained numbers p and n.
FP8LAB_HD inline XieluFactors xielu_factors(float p, float n) {
  return {softplus(p), kXieluBeta + softplus(n)};
}

FP8LAB_HD inline float xielu(float x, XieluFactors f) {
  const float curved = x > 0.0f ? (f.alpha_p * x) * x : f.alpha_n * (expm1_of_negative(x) - x);
  return canonical_nan(curved + (kXieluBeta * x));
}

/// The derivative at x.
FP8LAB_HD inline float xielu_slope(float x, XieluFactors f) {
  const float curved = x > 0.0f ? (f.alpha_p + f.alpha_p) * x : f.alpha_n * expm1_of_negative(x);
  return curved + kXieluBeta;
}

/// dout times the derivatives of xielu by alpha_p and by alpha_n; one of them is +0.
struct XieluTerms {
  float p = 0.0f, n = 0.0f;
};
FP8LAB_HD inline XieluTerms xielu_terms(float x, float dout) {
  if (x > 0.0f) return {(dout * x) * x, 0.0f};
  return {0.0f, dout * (expm1_of_negative(x) - x)};
}

FP8LAB_NUMERICS_END
