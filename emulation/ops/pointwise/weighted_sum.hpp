// Elementwise sum with a factor for each summand.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// sum = (a * factor_a) + (b * factor_b), or a * factor_a if b is empty, in FP32 with each
/// operation rounded. Any of the three may be the same view.
struct WeightedSum {
  static constexpr std::string_view kName = "weighted_sum";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView a;
  float factor_a = 1.0f;
  TensorView b{};
  float factor_b = 1.0f;
  TensorView sum;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("a", a));
    visit(reads("b", b));
    visit(writes("sum", sum));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(a, b, sum); }
};

}  // namespace fp8lab::ops
