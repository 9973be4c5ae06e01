// Elementwise sum.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// sum = round(a + b); any of the three may be the same view.
struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView a, b, sum;

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
