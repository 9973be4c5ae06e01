#include "emulation/ops/optimizer/orthogonalize.hpp"

#include <algorithm>
#include <cstdint>

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void Orthogonalize::check() const {
  const Checks checks("orthogonalize");
  const std::int64_t rows = update.rows, cols = update.cols, small = std::min(rows, cols);
  checks.require(spec.rule == UpdateRule::muon, "is of the rule muon");
  checks.require(update.size() > 0, "update is empty");
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.vector("squares", squares, StepScalar::kCount, {DType::f32});
  checks.tensor("update", update, rows, cols, {DType::f32});
  checks.activation("gradient", gradient, rows, cols);
  checks.tensor("first_moment", first_moment, first_moment.rows, first_moment.cols, {DType::f32});
  checks.require(
      first_moment.size() == rows * cols,
      "first_moment " + describe(first_moment) + " has not the elements of " + describe(update));
  checks.tensor("x", x, rows, cols, {DType::bf16});
  checks.tensor("gram", gram, small, small, {DType::bf16});
  checks.contiguous("update", update);
  checks.contiguous("gradient", gradient);
  checks.contiguous("first_moment", first_moment);
  checks.contiguous("x", x);
  checks.contiguous("gram", gram);
}

}  // namespace fp8lab::ops
