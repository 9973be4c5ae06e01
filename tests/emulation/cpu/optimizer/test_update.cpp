// Update rules against their formulas in double precision, and against the operation of AdamW.
#include <catch2/catch.hpp>

#include <cmath>

#include "emulation/base/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kRows = 3, kCols = 700, kSize = kRows * kCols;

/// Scalars of step 3 with a clip factor.
Matrix scalars_of(DType dtype, const UpdateSpec& spec, double rate) {
  Matrix scalars(dtype, 1, StepScalar::kCount);
  scalars.set(StepScalar::kLearningRate, rate);
  scalars.set(StepScalar::kClipFactor, 0.25);
  scalars.set(StepScalar::kBeta1Power, std::pow(static_cast<double>(spec.beta1), 3));
  scalars.set(StepScalar::kBeta2Power, std::pow(static_cast<double>(spec.beta2), 3));
  return scalars;
}

struct Tensors {
  explicit Tensors(DType dtype)
      : weights(Matrix::random(dtype, kRows, kCols, 1)),
        gradient(Matrix::random(dtype, kRows, kCols, 2)),
        first(Matrix::random(dtype, kRows, kCols, 3)),
        second(Matrix::random(dtype, kRows, kCols, 4)),
        bound(dtype, 1, 1) {
    for (std::int64_t i = 0; i < kSize; ++i) second.set(i, std::abs(second.at(i)));
    weights.set(5, 0.0);
    bound.set(0, 0.9);
  }

  void step(Backend& backend, const UpdateSpec& spec, TensorView scalars, float mask) {
    const TensorView none, m = spec.has_first_moment() ? first.view() : none,
                           v = spec.has_second_moment() ? second.view() : none;
    const auto advance = [&] {
      backend.run(ops::AdvanceMoments{spec, scalars, gradient.view(), m, v});
    };
    if (spec.rule != UpdateRule::lion) advance();
    backend.run(ops::UpdateWeights{spec, scalars, mask, weights.view(), none, gradient.view(), m, v,
                                   spec.rule == UpdateRule::madam ? bound.view() : none});
    if (spec.rule == UpdateRule::lion) advance();
  }

  Matrix weights, gradient, first, second, bound;
};

UpdateSpec of_rule(UpdateRule rule) {
  UpdateSpec spec;
  spec.rule = rule;
  spec.rate_factor = 0.5f;
  spec.gradient_bound = 2.6f;
  spec.momentum = 0.8f;
  spec.update_factor = 2.25f;
  return spec;
}

/// One weight with a gradient and moments; rate 2^-7, no clipping, no decay, both powers 1/2.
double moved(UpdateRule rule, double w, double g, double m, double v, double bound = 100.0) {
  UpdateSpec spec;
  spec.rule = rule;
  spec.beta1 = spec.beta2 = 0.5f;
  spec.epsilon = 1e-30f;
  spec.update_factor = 4.0f;
  Matrix scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kLearningRate, 0x1p-7);
  scalars.set(StepScalar::kClipFactor, 1.0);
  scalars.set(StepScalar::kBeta1Power, 0.5);
  scalars.set(StepScalar::kBeta2Power, 0.5);
  Matrix weight(DType::f32, 1, 1), gradient(DType::f32, 1, 1), first(DType::f32, 1, 1);
  Matrix second(DType::f32, 1, 1), largest(DType::f32, 1, 1);
  weight.set(0, w);
  gradient.set(0, g);
  first.set(0, m);
  second.set(0, v);
  largest.set(0, bound);
  const TensorView none;
  cpu::run(ops::UpdateWeights{spec, scalars.view(), 0.0f, weight.view(), none, gradient.view(),
                              spec.has_first_moment() ? first.view() : none,
                              spec.has_second_moment() ? second.view() : none,
                              rule == UpdateRule::madam ? largest.view() : none});
  return weight.at(0);
}

}  // namespace

TEST_CASE("every rule follows its formula in double precision") {
  const UpdateRule rule = GENERATE(UpdateRule::adamw, UpdateRule::lion, UpdateRule::sgd,
                                   UpdateRule::madam, UpdateRule::muon);
  const float mask = GENERATE(0.0f, 1.0f);
  INFO(name_of(rule) << " " << mask);
  const UpdateSpec spec = of_rule(rule);
  const auto cpu = cpu::make_cpu_backend(2);
  const auto truth = reference::make_truth_backend(1);
  Tensors single(DType::f32), wide(DType::f64);
  for (std::int64_t i = 0; i < kSize; ++i) {  // the same FP32 numbers
    wide.weights.set(i, single.weights.at(i));
    wide.gradient.set(i, single.gradient.at(i));
    wide.first.set(i, single.first.at(i));
    wide.second.set(i, single.second.at(i));
  }
  Matrix scalars = scalars_of(DType::f32, spec, 1e-2);
  Matrix wide_scalars = scalars_of(DType::f64, spec, 1e-2);
  const Matrix before = single.weights;
  single.step(*cpu, spec, scalars.view(), mask);
  wide.step(*truth, spec, wide_scalars.view(), mask);
  for (std::int64_t i = 0; i < kSize; ++i) {
    REQUIRE(single.first.at(i) == Approx(wide.first.at(i)).epsilon(1e-5).margin(1e-7));
    REQUIRE(single.second.at(i) == Approx(wide.second.at(i)).epsilon(1e-5).margin(1e-7));
    const double change = wide.weights.at(i) - before.at(i);
    REQUIRE(single.weights.at(i) - before.at(i) == Approx(change).epsilon(1e-4).margin(3e-7));
  }
  CHECK(single.weights.bytes() != before.bytes());
}

TEST_CASE("rules by hand") {
  // AdamW: rate / (1 - 1/2) * m / (sqrt(v) / sqrt(1/2)).
  CHECK(moved(UpdateRule::adamw, 1.0, 0.0, 2.0, 8.0) == Approx(1.0 - 0x1p-6 * 2.0 / 4.0));
  CHECK(moved(UpdateRule::sgd, 1.0, 5.0, 3.0, 0.0) == 1.0 - 3 * 0x1p-7);
  CHECK(moved(UpdateRule::muon, 1.0, 5.0, 3.0, 0.0) == 1.0 - 4 * 3 * 0x1p-7);
  // The sign of the mean of m and g; nothing where they cancel.
  CHECK(moved(UpdateRule::lion, 1.0, 5.0, -1.0, 0.0) == 1.0 - 0x1p-7);
  CHECK(moved(UpdateRule::lion, 1.0, -5.0, 1.0, 0.0) == 1.0 + 0x1p-7);
  CHECK(moved(UpdateRule::lion, 1.0, 1.0, -1.0, 0.0) == 1.0);
  // g / sqrt(v / (1/2)) = 3 gives 3 / 128 octave, towards zero for a gradient of the weight's sign.
  const double factor = std::exp2(-3.0 / 128);
  CHECK(moved(UpdateRule::madam, 4.0, 6.0, 0.0, 2.0) == Approx(4.0 * factor));
  CHECK(moved(UpdateRule::madam, -4.0, 6.0, 0.0, 2.0) == Approx(-4.0 / factor));
  CHECK(moved(UpdateRule::madam, 4.0, -6.0, 0.0, 2.0) == Approx(4.0 / factor));
}

TEST_CASE("madam rounds to whole steps, bounds gradient and weight, and keeps zeros") {
  const auto steps = [](double g, double v) {
    return -128.0 * std::log2(moved(UpdateRule::madam, 1.0, g, 0.0, v));
  };
  CHECK(steps(0.4, 0.5) == 0.0);
  CHECK(steps(0.6, 0.5) == Approx(1.0).margin(1e-4));
  CHECK(steps(2.5, 0.5) == Approx(2.0).margin(1e-4));  // a tie, to even
  CHECK(steps(3.5, 0.5) == Approx(4.0).margin(1e-4));
  CHECK(steps(50.0, 0.5) == Approx(10.0).margin(1e-4));  // gradient_bound
  CHECK(steps(-50.0, 0.5) == Approx(-10.0).margin(1e-4));
  CHECK(steps(1e-3, 0.0) == Approx(10.0).margin(1e-4));  // infinite
  CHECK(steps(0.0, 0.0) == 0.0);                         // no number
  CHECK(moved(UpdateRule::madam, 0.0, 5.0, 0.0, 1.0) == 0.0);
  CHECK(moved(UpdateRule::madam, 1.0, -50.0, 0.0, 0.5, 1.01) == Approx(1.01));
  CHECK(moved(UpdateRule::madam, -1.0, 50.0, 0.0, 0.5, 1.01) == Approx(-1.01));
  CHECK(moved(UpdateRule::madam, 1.0, 50.0, 0.0, 0.5, 0.0) == 0.0);  // began at zero
}

TEST_CASE("the two halves of adamw have the bits of the whole") {
  const DType master_type = GENERATE(DType::f32, DType::bf16);
  UpdateSpec spec;
  spec.rate_factor = GENERATE(1.0f, 0.3f);
  const auto cpu = cpu::make_cpu_backend(2);
  Tensors apart(DType::f32), together(DType::f32);
  Matrix weights(master_type, kRows, kCols), whole(master_type, kRows, kCols);
  for (std::int64_t i = 0; i < kSize; ++i) {
    weights.set(i, apart.weights.at(i));
    whole.set(i, apart.weights.at(i));
  }
  Matrix scalars = scalars_of(DType::f32, spec, 1e-2);
  apart.weights = weights;
  apart.step(*cpu, spec, scalars.view(), 1.0f);
  cpu->run(ops::AdamW{
      spec,
      scalars.view(),
      1.0f,
      {whole.view(), {}, together.gradient.view(), together.first.view(), together.second.view()}});
  CHECK(apart.weights.bytes() == whole.bytes());
  CHECK(apart.first.bytes() == together.first.bytes());
  CHECK(apart.second.bytes() == together.second.bytes());
  CHECK(whole.bytes() != weights.bytes());
}

TEST_CASE("moments that a rule does not have are refused") {
  UpdateSpec spec = of_rule(UpdateRule::lion);
  Tensors t(DType::f32);
  Matrix scalars = scalars_of(DType::f32, spec, 1e-2);
  const auto advance = [&](TensorView second) {
    cpu::run(ops::AdvanceMoments{spec, scalars.view(), t.gradient.view(), t.first.view(), second});
  };
  CHECK_NOTHROW(advance({}));
  CHECK_THROWS_WITH(advance(t.second.view()), Catch::Contains("second_moment"));
  spec.moments = MomentUse::unrounded;
  spec.rule = UpdateRule::adamw;
  CHECK_THROWS_WITH(
      cpu::run(
          ops::AdamW{spec,
                     scalars.view(),
                     1.0f,
                     {t.weights.view(), {}, t.gradient.view(), t.first.view(), t.second.view()}}),
      Catch::Contains("rounded"));
}
