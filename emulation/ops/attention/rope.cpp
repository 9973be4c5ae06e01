#include "emulation/ops/attention/rope.hpp"

#include <string>

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void Rope::check() const {
  const Checks checks("rope");
  checks.activation("x", x, x.rows, x.cols);
  checks.require(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0,
                 "x " + describe(x) + " does not divide into heads of " + std::to_string(head_dim) +
                     " columns (an even number)");
  checks.vector("positions", positions, x.rows, {DType::i32});
  checks.tensor("cosine", cosine, cosine.rows, head_dim / 2, {DType::f32});
  checks.tensor("sine", sine, cosine.rows, head_dim / 2, {DType::f32});
}

}  // namespace fp8lab::ops
