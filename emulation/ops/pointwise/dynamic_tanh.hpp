// Dynamic tanh, which stands in place of a norm and has one trained number, and its gradient.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// out = numerics::dynamic_tanh(x, alpha). x and out (T, F), out may be x; alpha (1, 1) bf16 or
/// f32.
struct DynamicTanhForward {
  static constexpr std::string_view kName = "dynamic_tanh_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, alpha, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("alpha", alpha));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, out); }
};

/// dx and terms from numerics::dynamic_tanh_slopes(x, alpha, dout): dx is by_x; x, dout and dx
/// (T, F), dx may be either. terms (T, 1) f32, or empty: for each token tree_sum over the row of
/// by_alpha, so that their sum is the gradient of alpha.
struct DynamicTanhBackward {
  static constexpr std::string_view kName = "dynamic_tanh_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, alpha, dout, dx, terms;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("alpha", alpha));
    visit(reads("dout", dout));
    visit(writes("dx", dx));
    visit(writes("terms", terms));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, dout, dx); }
};

}  // namespace fp8lab::ops
