// The two halves of a weight update, for every rule and any storage of moments: both
// work on moments in FP32. AdamW on plain tensors has an operation of its own
// (ops/optimizer/adamw.hpp), with the same bits.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/ops/tensors.hpp"
#include "emulation/spec/update_spec.hpp"

namespace fp8lab {

/// Factors that all elements of a tensor share in a step. Each operation is rounded.
struct UpdateFactors {
  float clip;        ///< factor of the gradient
  float rate;        ///< learning rate * rate_factor
  float decay;       ///< 1 - ((rate * weight_decay) * decay_mask)
  float first_rate;  ///< rate / (1 - beta1^t)
  float correction;  ///< 1 - beta2^t
  float root;        ///< sqrt(correction)
  float one_minus_beta1;
  float one_minus_beta2;
  float one_minus_momentum;
  float matrix_rate;  ///< rate * update_factor
};

FP8LAB_HD inline UpdateFactors update_factors(const UpdateSpec& spec, const float* scalars,
                                              float decay_mask) {
  UpdateFactors f{};
  f.clip = scalars[StepScalar::kClipFactor];
  f.rate = scalars[StepScalar::kLearningRate] * spec.rate_factor;
  f.decay = 1.0f - ((f.rate * spec.weight_decay) * decay_mask);
  f.first_rate = f.rate / (1.0f - scalars[StepScalar::kBeta1Power]);
  f.correction = 1.0f - scalars[StepScalar::kBeta2Power];
  f.root = __builtin_sqrtf(f.correction);
  f.one_minus_beta1 = 1.0f - spec.beta1;
  f.one_minus_beta2 = 1.0f - spec.beta2;
  f.one_minus_momentum = 1.0f - spec.momentum;
  f.matrix_rate = f.rate * spec.update_factor;
  return f;
}

/// Returns m after a step with the clipped gradient g: (beta1 * m) + ((1 - beta1) * g) for adamw;
/// the same with beta2 for lion, with momentum for muon; (beta1 * m) + g for sgd.
FP8LAB_HD inline float next_first_moment(const UpdateSpec& spec, const UpdateFactors& f, float m,
                                         float g) {
  if (spec.rule == UpdateRule::lion) return (spec.beta2 * m) + (f.one_minus_beta2 * g);
  if (spec.rule == UpdateRule::sgd) return (spec.beta1 * m) + g;
  if (spec.rule == UpdateRule::muon) return (spec.momentum * m) + (f.one_minus_momentum * g);
  return (spec.beta1 * m) + (f.one_minus_beta1 * g);
}

/// Returns v after a step: (beta2 * v) + (((1 - beta2) * g) * g).
FP8LAB_HD inline float next_second_moment(const UpdateSpec& spec, const UpdateFactors& f, float v,
                                          float g) {
  return (spec.beta2 * v) + ((f.one_minus_beta2 * g) * g);
}

/// Returns w * 2^(-n) for w > 0 and w * 2^n for w < 0, with n = rate * the integer nearest to the
/// bounded g / sqrt(v / (1 - beta2^t)), ties to even, and 0 for a NaN; then bounds the result to
/// +-weight_bound. There is no epsilon: a gradient over a v of zero is infinite, and bounded.
FP8LAB_HD inline float madam_weight(const UpdateSpec& spec, const UpdateFactors& f, float w,
                                    float g, float v, float weight_bound) {
  float normed = g / __builtin_sqrtf(v / f.correction);
  normed = normed > spec.gradient_bound    ? spec.gradient_bound
           : normed < -spec.gradient_bound ? -spec.gradient_bound
           : normed == normed              ? normed
                                           : 0.0f;
  const float whole = (normed + numerics::kF32ToInteger) - numerics::kF32ToInteger;
  const float step = f.rate * whole;
  const float moved = w * numerics::exp2(w > 0.0f ? -step : step);
  return moved > weight_bound ? weight_bound : moved < -weight_bound ? -weight_bound : moved;
}

/// Returns the weight after a step, from the clipped gradient g and the moments: for lion those
/// before the step, for muon m is the update of ops::Orthogonalize, for the other rules those after
/// the step. Of the other rules only madam reads g.
///   adamw  (w * decay) - (first_rate * (m / ((sqrt(v) / root) + epsilon)))
///   lion   (w * decay) - (rate * sign((beta1 * m) + ((1 - beta1) * g))), the sign of 0 being 0
///   sgd    (w * decay) - (rate * m)
///   madam  madam_weight
///   muon   (w * decay) - ((rate * update_factor) * m)
FP8LAB_HD inline float updated_weight(const UpdateSpec& spec, const UpdateFactors& f, float w,
                                      float g, float m, float v, float weight_bound) {
  if (spec.rule == UpdateRule::madam) return madam_weight(spec, f, w, g, v, weight_bound);
  const float decayed = w * f.decay;
  if (spec.rule == UpdateRule::sgd) return decayed - (f.rate * m);
  if (spec.rule == UpdateRule::muon) return decayed - (f.matrix_rate * m);
  if (spec.rule == UpdateRule::lion) {
    const float c = (spec.beta1 * m) + (f.one_minus_beta1 * g);
    return decayed - (f.rate * (c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c));
  }
  const float denominator = (__builtin_sqrtf(v) / f.root) + spec.epsilon;
  return decayed - (f.first_rate * (m / denominator));
}

namespace ops {

/// If the rule has them, m and v become next_first_moment and next_second_moment with
/// g = gradient * clip. gradient: f32 or bf16. Moments: f32. All are contiguous and of one size.
struct AdvanceMoments {
  static constexpr std::string_view kName = "advance_moments";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  const UpdateSpec& spec;
  TensorView scalars;
  TensorView gradient;
  TensorView first_moment;   ///< empty if the rule has none
  TensorView second_moment;  ///< empty if the rule has none

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("scalars", scalars));
    visit(reads("gradient", gradient));
    visit(updates("first_moment", first_moment));
    visit(updates("second_moment", second_moment));
  }
  void check() const;
  /// Elements of all tensors.
  double work() const { return elements(gradient, first_moment, second_moment); }
};

/// master = updated_weight, rounded to its storage type to nearest even; working = to_bf16 of it if
/// present. Tensors as those of AdvanceMoments.
struct UpdateWeights {
  static constexpr std::string_view kName = "update_weights";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  const UpdateSpec& spec;
  TensorView scalars;
  float decay_mask = 1.0f;
  TensorView master;         ///< f32 or bf16
  TensorView working;        ///< bf16 copy of an f32 master, or empty
  TensorView gradient;       ///< f32 or bf16
  TensorView first_moment;   ///< f32; empty if the rule has none; muon: ops::Orthogonalize's update
  TensorView second_moment;  ///< f32; empty if the rule has none
  TensorView weight_bound;   ///< madam: f32 (1, 1), the largest magnitude of a weight; else empty

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("scalars", scalars));
    visit(reads("gradient", gradient));
    visit(reads("first_moment", first_moment));
    visit(reads("second_moment", second_moment));
    visit(reads("weight_bound", weight_bound));
    visit(updates("master", master));
    visit(writes("working", working));
  }
  void check() const;
  /// Elements of all tensors.
  double work() const { return elements(master, working, gradient, first_moment, second_moment); }
};

}  // namespace ops
}  // namespace fp8lab
