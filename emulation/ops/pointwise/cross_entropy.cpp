#include "emulation/ops/pointwise/cross_entropy.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void CrossEntropy::check() const {
  const Checks checks("cross_entropy");
  checks.activation("logits", logits, logits.rows, logits.cols);
  checks.vector("targets", targets, logits.rows, {DType::i32});
  checks.vector("weights", weights, logits.rows, {DType::f32});
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.vector("token_loss", token_loss, logits.rows, {DType::f32});
  if (!dlogits.empty()) checks.activation("dlogits", dlogits, logits.rows, logits.cols);
  if (!summed.empty()) checks.vector("summed", summed, summed.cols, {DType::f32});
}

}  // namespace fp8lab::ops
