#include "emulation/ops/pointwise/layernorm.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void LayerNormForward::check() const {
  const Checks checks("layernorm_forward");
  checks.activation("x", x, x.rows, x.cols);
  checks.vector("weight", weight, x.cols, {DType::bf16, DType::f32});
  checks.vector("bias", bias, x.cols, {weight.dtype});
  checks.activation("y", y, x.rows, x.cols);
  checks.vector("mean", mean, x.rows, {DType::f32});
  checks.vector("rstd", rstd, x.rows, {DType::f32});
}

void LayerNormBackward::check() const {
  const Checks checks("layernorm_backward");
  checks.activation("x", x, x.rows, x.cols);
  checks.activation("dy", dy, x.rows, x.cols);
  checks.vector("weight", weight, x.cols, {DType::bf16, DType::f32});
  checks.vector("mean", mean, x.rows, {DType::f32});
  checks.vector("rstd", rstd, x.rows, {DType::f32});
  checks.activation("dx", dx, x.rows, x.cols);
  checks.vector("dweight", dweight, x.cols, {DType::f32});
  checks.vector("dbias", dbias, x.cols, {DType::f32});
  checks.require(dx.data != x.data, "dx must not overwrite x");
}

}  // namespace fp8lab::ops
