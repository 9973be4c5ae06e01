// Per-channel factors that move range from one operand of a product to the other.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"
#include "emulation/spec/transform.hpp"

namespace fp8lab::ops {

/// factors (1, K) f32 = numerics::smoothing_factor of the amaxes of A and B at each position along
/// K, where A is `a`, or its transpose with `transpose_a`, and B likewise. If the smoothing is
/// static, a factor that is not 0 stays unchanged.
struct SmoothingFactors {
  static constexpr std::string_view kName = "smoothing_factors";
  static constexpr WorkClass kClass = WorkClass::quantization;

  Smoothing smoothing;
  TensorView a;
  bool transpose_a = false;
  TensorView b;
  bool transpose_b = false;
  TensorView factors;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("a", a));
    visit(reads("b", b));
    visit(updates("factors", factors));  // static ones are computed once
  }
  void check() const;
  /// Elements read.
  double work() const { return elements(a, b); }
};

}  // namespace fp8lab::ops
