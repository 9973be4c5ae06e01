#include "emulation/ops/pointwise/swiglu.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void SwigluForward::check() const {
  const Checks checks("swiglu_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("gate_up", gate_up, out.rows, 2 * out.cols);
}

void SwigluBackward::check() const {
  const Checks checks("swiglu_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("gate_up", gate_up, dout.rows, 2 * dout.cols);
  checks.activation("dgate_up", dgate_up, dout.rows, 2 * dout.cols);
}

}  // namespace fp8lab::ops
