// GELU in its tanh form, the activation of the GPT-2 family.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// Elementwise, with the constants of numerics/gelu.hpp, a = 2 sqrt(2 / pi) and b = a * 0.044715:
/// sig = sigmoid(x * (a + (b * (x * x))));  out = x * sig. x and out (T, F); out may be x.
struct GeluForward {
  static constexpr std::string_view kName = "gelu_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, out); }
  const TensorView& output() const { return out; }
};

/// With sig as above and c = 3 * b: v = x * (sig * (1 - sig));
/// dx = dout * (sig + ((v * a) + (((v * x) * x) * c))). x, dout and dx (T, F); dx may be either.
struct GeluBackward {
  static constexpr std::string_view kName = "gelu_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, dout, dx;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("dout", dout));
    visit(writes("dx", dx));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, dout, dx); }
  const TensorView& output() const { return dx; }
};

}  // namespace fp8lab::ops
