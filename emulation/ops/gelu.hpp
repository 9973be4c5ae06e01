// GELU in its tanh form, the activation of the GPT-2 family.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// Elementwise, with the constants of numerics/gelu.hpp, a = 2 sqrt(2 / pi) and b = a * 0.044715:
/// sig = sigmoid(x * (a + (b * (x * x))));  out = x * sig. x and out (T, F); out may be x.
struct GeluForward {
  TensorView x, out;

  void check() const;
  const TensorView& output() const { return out; }
};

/// With sig as above and c = 3 * b: v = x * (sig * (1 - sig));
/// dx = dout * (sig + ((v * a) + (((v * x) * x) * c))). x, dout and dx (T, F); dx may be either.
struct GeluBackward {
  TensorView x, dout, dx;

  void check() const;
  const TensorView& output() const { return dx; }
};

}  // namespace fp8lab::ops
