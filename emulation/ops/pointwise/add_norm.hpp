// Norms at the residual stream: the norm of the stream's sum with a block's output, and the norm's
// gradient added to that of the stream.
#pragma once

#include <string_view>
#include <type_traits>

#include "emulation/ops/pointwise/add.hpp"
#include "emulation/ops/pointwise/layernorm.hpp"
#include "emulation/ops/pointwise/rmsnorm.hpp"

namespace fp8lab::ops {

/// norm.x = round(a + b), then the norm of norm.x. a or b may be norm.x.
template <class Norm>
struct AddNorm {
  static constexpr std::string_view kName =
      std::is_same_v<Norm, RmsNormForward> ? "add_rmsnorm_forward" : "add_layernorm_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView a, b;
  Norm norm;

  /// Calls visit(op) for each operation that this one consists of, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    visit(Add{.a = a, .b = b, .sum = norm.x});
    visit(norm);
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for_each_part([&](const auto& part) { part.for_each_tensor(visit); });
  }
  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Elements read and written by the parts.
  double work() const { return elements(a, b, norm.x) + norm.work(); }
  /// The tensor that a following quantization reads.
  const TensorView& output() const { return norm.output(); }
};
using AddRmsNormForward = AddNorm<RmsNormForward>;
using AddLayerNormForward = AddNorm<LayerNormForward>;

/// The norm's gradient, then gradient = round(gradient + norm.dx), with the norm.dx that the norm
/// stores. norm.dx may be norm.dy; the contents of both are unspecified afterwards.
template <class NormBackward>
struct NormBackwardAdd {
  static constexpr std::string_view kName = std::is_same_v<NormBackward, RmsNormBackward>
                                                ? "rmsnorm_backward_add"
                                                : "layernorm_backward_add";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  NormBackward norm;
  TensorView gradient;

  /// Calls visit(op) for each operation that this one consists of, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    visit(norm);
    visit(Add{.a = gradient, .b = norm.dx, .sum = gradient});
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    norm.for_each_tensor([&](const OperationTensor& tensor) {
      if (tensor.name != "dx") visit(tensor);
    });
    visit(updates("gradient", gradient));
  }
  /// Throws Error also if gradient is a tensor of the norm.
  void check() const;
  /// Elements read and written by the parts.
  double work() const { return norm.work() + elements(gradient, norm.dx, gradient); }
};
using RmsNormBackwardAdd = NormBackwardAdd<RmsNormBackward>;
using LayerNormBackwardAdd = NormBackwardAdd<LayerNormBackward>;

}  // namespace fp8lab::ops
