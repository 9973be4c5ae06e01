#include "emulation/ops/pointwise/xielu.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {
namespace {

void check_numbers(const Checks& checks, const TensorView& p, const TensorView& n) {
  checks.activation("p", p, 1, 1);
  checks.tensor("n", n, 1, 1, {p.dtype});
}

}  // namespace

void XieluForward::check() const {
  const Checks checks("xielu_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("x", x, out.rows, out.cols);
  check_numbers(checks, p, n);
}

void XieluBackward::check() const {
  const Checks checks("xielu_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("x", x, dout.rows, dout.cols);
  checks.activation("dx", dx, dout.rows, dout.cols);
  check_numbers(checks, p, n);
  if (!terms.empty()) checks.tensor("terms", terms, dout.rows, 2, {DType::f32});
}

}  // namespace fp8lab::ops
