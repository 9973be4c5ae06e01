#include "emulation/ops/pointwise/gated.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void GatedForward::check() const {
  const Checks checks("gated_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("gate_up", gate_up, out.rows, 2 * out.cols);
}

void GatedBackward::check() const {
  const Checks checks("gated_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("gate_up", gate_up, dout.rows, 2 * dout.cols);
  checks.activation("dgate_up", dgate_up, dout.rows, 2 * dout.cols);
}

}  // namespace fp8lab::ops
