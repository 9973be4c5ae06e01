#include "emulation/ops/pointwise/rmsnorm.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {
namespace {

/// Requires a weight as long as a row of x, or as one of the heads into which a row divides.
void check_norm_weight(const Checks& checks, const TensorView& weight, const TensorView& x) {
  checks.require(weight.cols == x.cols || (weight.cols > 0 && x.cols % weight.cols == 0),
                 "x " + describe(x) + " does not divide into heads of weight " + describe(weight));
  checks.vector("weight", weight, weight.cols, {DType::bf16, DType::f32});
}

}  // namespace

void RmsNormForward::check() const {
  const Checks checks("rmsnorm_forward");
  checks.activation("x", x, x.rows, x.cols);
  check_norm_weight(checks, weight, x);
  checks.activation("y", y, x.rows, x.cols);
  checks.vector("rstd", rstd, x.rows * NormHeads::of(x, weight).count, {DType::f32});
}

void RmsNormBackward::check() const {
  const Checks checks("rmsnorm_backward");
  checks.activation("x", x, x.rows, x.cols);
  checks.activation("dy", dy, x.rows, x.cols);
  check_norm_weight(checks, weight, x);
  checks.vector("rstd", rstd, x.rows * NormHeads::of(x, weight).count, {DType::f32});
  checks.activation("dx", dx, x.rows, x.cols);
  checks.vector("dweight", dweight, weight.cols, {DType::f32});
  checks.require(dx.data != x.data, "dx must not overwrite x");
}

}  // namespace fp8lab::ops
