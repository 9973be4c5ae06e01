// xIELU, an activation with two trained numbers, and its gradient.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// out = numerics::xielu(x) with numerics::xielu_factors(p, n). x and out (T, F), out may be x;
/// p and n (1, 1), both bf16 or both f32.
struct XieluForward {
  static constexpr std::string_view kName = "xielu_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, p, n, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("p", p));
    visit(reads("n", n));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, out); }
  const TensorView& output() const { return out; }
};

/// dx = dout * numerics::xielu_slope(x); x, dout and dx (T, F), dx may be either. terms (T, 2) f32,
/// or empty: for each token tree_sum over the row of numerics::xielu_terms, the first times
/// sigmoid(p), the second times sigmoid(n), so that the sums of the columns are the gradients of
/// p and n.
struct XieluBackward {
  static constexpr std::string_view kName = "xielu_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, p, n, dout, dx, terms;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("p", p));
    visit(reads("n", n));
    visit(reads("dout", dout));
    visit(writes("dx", dx));
    visit(writes("terms", terms));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, dout, dx); }
  const TensorView& output() const { return dx; }
};

}  // namespace fp8lab::ops
