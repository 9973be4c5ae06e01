#include "emulation/ops/pointwise/argmax.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void Argmax::check() const {
  const Checks checks("argmax");
  checks.activation("logits", logits, logits.rows, logits.cols);
  checks.require(logits.cols > 0, "logits have no column");
  checks.vector("out", out, logits.rows, {DType::i32});
}

}  // namespace fp8lab::ops
