#include "emulation/ops/pointwise/bias.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void BiasBackward::check() const {
  const Checks checks("bias_backward");
  checks.activation("dy", dy, dy.rows, dy.cols);
  checks.vector("dbias", dbias, dy.cols, {DType::f32});
}

}  // namespace fp8lab::ops
