#include "emulation/ops/pointwise/dynamic_tanh.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void DynamicTanhForward::check() const {
  const Checks checks("dynamic_tanh_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("x", x, out.rows, out.cols);
  checks.activation("alpha", alpha, 1, 1);
}

void DynamicTanhBackward::check() const {
  const Checks checks("dynamic_tanh_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("x", x, dout.rows, dout.cols);
  checks.activation("dx", dx, dout.rows, dout.cols);
  checks.activation("alpha", alpha, 1, 1);
  if (!terms.empty()) checks.tensor("terms", terms, dout.rows, 1, {DType::f32});
}

}  // namespace fp8lab::ops
