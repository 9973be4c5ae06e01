// The gradient's norm and the AdamW update with decoupled weight decay (Loshchilov and Hutter 2019,
// algorithm 2).
#pragma once

#include <span>

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/optimizer/update.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

struct AdamWTensors {
  TensorView master;         ///< the weights that are updated: f32 or bf16 (f64 on the truth path)
  TensorView working;        ///< bf16 copy rounded from an f32 master, or empty
  TensorView gradient;       ///< f32 or bf16
  TensorView first_moment;   ///< f32 or bf16
  TensorView second_moment;  ///< f32 or bf16
};

namespace ops {

/// For each of `gradients`, in their order: scalars[kGradNormSquared] = scalars[kGradNormSquared] +
/// tree_sum(g * g) over the elements in row-major order. Each gradient is f32 or bf16, contiguous.
struct AccumulateSquareSum {
  static constexpr std::string_view kName = "accumulate_square_sum";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  std::span<const TensorView> gradients;
  TensorView scalars;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const TensorView& gradient : gradients) visit(reads("gradient", gradient));
    visit(updates("scalars", scalars));
  }
  void check() const;
  /// Elements read.
  double work() const {
    double all = 0.0;
    for (const TensorView& gradient : gradients) all += elements(gradient);
    return all;
  }
};

/// norm = sqrt(scalars[kGradNormSquared]);  ratio = clip_norm / (norm + 1e-6);
/// clip = (clip_norm > 0 and ratio < 1) ? ratio : 1 (a NaN norm gives 1: the gradient itself is
/// NaN). beta power = max((power == 0 ? 1 : power) * beta, 2^-126). Zero stands for "before step
/// 1"; the lower limit, invisible in 1 - power, prevents the power from becoming zero again.
struct BeginUpdate {
  static constexpr std::string_view kName = "begin_update";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  const UpdateSpec& spec;
  TensorView scalars;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(updates("scalars", scalars));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(scalars); }
};

/// Once per call, with lr = the step's learning rate * rate_factor (update_factors): decay = 1 -
/// ((lr * weight_decay) * decay_mask);  rate = lr / (1 - power1);  root = sqrt(1 - power2). Per
/// element:
///   p = p * decay;  g = gradient * clip;
///   m = round((beta1 * m) + ((1 - beta1) * g));
///   v = round((beta2 * v) + (((1 - beta2) * g) * g));
///   p = p - (rate * (m / ((sqrt(v) / root) + epsilon))).
/// round(.) is to the moment's storage type, and p uses the rounded moments. master = p, rounded to
/// its storage type, to nearest even; working = to_bf16(p) if present. All tensors have the same
/// shape and are contiguous. Precondition: the spec has the rule adamw and rounded moments.
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  const UpdateSpec& spec;
  TensorView scalars;
  float decay_mask = 1.0f;
  AdamWTensors tensors;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("scalars", scalars));
    visit(reads("gradient", tensors.gradient));
    visit(updates("first_moment", tensors.first_moment));
    visit(updates("second_moment", tensors.second_moment));
    visit(updates("master", tensors.master));
    visit(writes("working", tensors.working));
  }
  void check() const;
  /// Elements of all tensors.
  double work() const {
    return elements(tensors.master, tensors.working, tensors.gradient, tensors.first_moment,
                    tensors.second_moment);
  }
};

}  // namespace ops
}  // namespace fp8lab
