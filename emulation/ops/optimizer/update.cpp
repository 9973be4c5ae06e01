#include "emulation/ops/optimizer/update.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {
namespace {

void check_moment(const Checks& checks, std::string_view name, const TensorView& moment,
                  bool has_one, std::int64_t n) {
  if (!has_one) return checks.require(moment.empty(), std::string(name) + " is not of this rule");
  checks.tensor(name, moment, moment.rows, moment.cols, {DType::f32});
  checks.contiguous(name, moment);
  checks.require(moment.size() == n, std::string(name) + " " + describe(moment) +
                                         " is not of the size of the gradient, " +
                                         std::to_string(n));
}

void check_moments(const Checks& checks, const UpdateSpec& spec, const TensorView& scalars,
                   const TensorView& gradient, const TensorView& first, const TensorView& second) {
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.activation("gradient", gradient, gradient.rows, gradient.cols);
  checks.contiguous("gradient", gradient);
  check_moment(checks, "first_moment", first, spec.has_first_moment(), gradient.size());
  check_moment(checks, "second_moment", second, spec.has_second_moment(), gradient.size());
}

}  // namespace

void AdvanceMoments::check() const {
  check_moments(Checks("advance_moments"), spec, scalars, gradient, first_moment, second_moment);
}

void UpdateWeights::check() const {
  const Checks checks("update_weights");
  check_moments(checks, spec, scalars, gradient, first_moment, second_moment);
  checks.activation("master", master, gradient.rows, gradient.cols);
  checks.contiguous("master", master);
  if (spec.rule == UpdateRule::madam) checks.vector("weight_bound", weight_bound, 1, {DType::f32});
  if (working.empty()) return;
  checks.require(master.dtype == DType::f32, "a master in bf16 has no working copy");
  checks.tensor("working", working, master.rows, master.cols, {DType::bf16});
  checks.contiguous("working", working);
}

}  // namespace fp8lab::ops
