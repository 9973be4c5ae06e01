#include "emulation/ops/optimizer/adamw.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void AccumulateSquareSum::check() const {
  const Checks checks("accumulate_square_sum");
  for (const TensorView& gradient : gradients) {
    checks.activation("gradient", gradient, gradient.rows, gradient.cols);
    checks.contiguous("gradient", gradient);
  }
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
}

void BeginUpdate::check() const {
  Checks("begin_update").vector("scalars", scalars, StepScalar::kCount, {DType::f32});
}

void AdamW::check() const {
  const Checks checks("adamw");
  checks.require(spec.rule == UpdateRule::adamw && spec.moments == MomentUse::rounded,
                 "is the rule adamw with rounded moments alone");
  const std::int64_t rows = tensors.master.rows;
  const std::int64_t cols = tensors.master.cols;
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.activation("master", tensors.master, rows, cols);
  checks.activation("gradient", tensors.gradient, rows, cols);
  checks.activation("first_moment", tensors.first_moment, rows, cols);
  checks.activation("second_moment", tensors.second_moment, rows, cols);
  checks.contiguous("master", tensors.master);
  checks.contiguous("gradient", tensors.gradient);
  checks.contiguous("first_moment", tensors.first_moment);
  checks.contiguous("second_moment", tensors.second_moment);
  if (tensors.working.empty()) return;
  checks.require(tensors.master.dtype == DType::f32, "a master in bf16 has no working copy");
  checks.tensor("working", tensors.working, rows, cols, {DType::bf16});
  checks.contiguous("working", tensors.working);
}

}  // namespace fp8lab::ops
