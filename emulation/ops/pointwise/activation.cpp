#include "emulation/ops/pointwise/activation.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void ActivationForward::check() const {
  const Checks checks("activation_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("x", x, out.rows, out.cols);
}

void ActivationBackward::check() const {
  const Checks checks("activation_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("x", x, dout.rows, dout.cols);
  checks.activation("dx", dx, dout.rows, dout.cols);
}

}  // namespace fp8lab::ops
