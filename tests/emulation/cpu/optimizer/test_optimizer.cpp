// AdamW, gradient norm and clipping against their formulas in double precision.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "tests/bounded.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE("square sums of large and small gradients") {
  const std::int64_t cols = GENERATE(1, 31, 4096, 4097, 20011);
  Matrix gradient = Matrix::random(DType::f32, 3, cols, 1);
  Matrix scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kGradNormSquared, 1.5);
  cpu::run(ops::AccumulateSquareSum{std::array{gradient.view()}, scalars.view()});
  std::vector<Bounded> terms;
  for (std::int64_t i = 0; i < gradient.rows() * cols; ++i) {
    terms.push_back(Bounded(gradient.at(i)) * gradient.at(i));
  }
  // Chunks of 4096: 128 additions in a lane and 5 levels; the same again over at most 15 chunks.
  const Bounded expected = Bounded(1.5) + sum(terms, 128 + 5 + 1 + 5);
  Agreement agreement;
  agreement.add(scalars.at(StepScalar::kGradNormSquared), expected);
  CHECK(agreement.worst() <= 1.0);
}

TEST_CASE("begin_update clips by the norm and counts beta powers from fresh zeros") {
  UpdateSpec spec;
  Matrix scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kGradNormSquared, 16.0);
  cpu::run(ops::BeginUpdate{spec, scalars.view()});
  CHECK(scalars.at(StepScalar::kGradNorm) == 4.0);
  CHECK(scalars.at(StepScalar::kClipFactor) == static_cast<double>(1.0f / (4.0f + 1e-6f)));
  CHECK(scalars.at(StepScalar::kBeta1Power) == static_cast<double>(0.9f));
  CHECK(scalars.at(StepScalar::kBeta2Power) == static_cast<double>(0.95f));
  scalars.set(StepScalar::kGradNormSquared, 0.25);
  cpu::run(ops::BeginUpdate{spec, scalars.view()});
  CHECK(scalars.at(StepScalar::kClipFactor) == 1.0);
  CHECK(scalars.at(StepScalar::kBeta1Power) == static_cast<double>(0.9f * 0.9f));
  spec.clip_norm = 0.0f;
  scalars.set(StepScalar::kGradNormSquared, 100.0);
  cpu::run(ops::BeginUpdate{spec, scalars.view()});
  CHECK(scalars.at(StepScalar::kClipFactor) == 1.0);
  // A small beta underflows; its power must not fall back to the "fresh" zero.
  spec.beta1 = 0.01f;
  for (int step = 0; step < 100; ++step) cpu::run(ops::BeginUpdate{spec, scalars.view()});
  CHECK(scalars.at(StepScalar::kBeta1Power) > 0.0);
  CHECK(scalars.at(StepScalar::kBeta1Power) < 1e-30);
}

TEST_CASE("adamw follows PyTorch's order over several steps") {
  const DType first_type = GENERATE(DType::f32, DType::bf16);
  const DType second_type = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 3, cols = 700;
  UpdateSpec spec;
  Matrix master = Matrix::random(DType::f32, rows, cols, 2);
  Matrix working(DType::bf16, rows, cols), first(first_type, rows, cols);
  Matrix second(second_type, rows, cols), scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kLearningRate, 1e-2);
  for (std::uint32_t step = 1; step <= 4; ++step) {
    Matrix gradient = Matrix::random(DType::f32, rows, cols, 2 + step, 0.5);
    const Matrix old_master = master, old_first = first, old_second = second;
    scalars.set(StepScalar::kGradNormSquared, 9.0);
    cpu::run(ops::BeginUpdate{spec, scalars.view()});
    const float mask = step == 3 ? 0.0f : 1.0f;
    cpu::run(
        ops::AdamW{spec,
                   scalars.view(),
                   mask,
                   {master.view(), working.view(), gradient.view(), first.view(), second.view()}});
    const Bounded lr = scalars.at(StepScalar::kLearningRate);
    const Bounded beta1 = static_cast<double>(spec.beta1), beta2 = static_cast<double>(spec.beta2);
    const Bounded one = 1.0;
    // beta^t of the formula: t - 1 products, each rounded.
    Bounded power1 = beta1, power2 = beta2;
    for (std::uint32_t i = 1; i < step; ++i) {
      power1 = power1 * beta1;
      power2 = power2 * beta2;
    }
    const Bounded clip = one / (Bounded(3.0) + static_cast<double>(1e-6f));
    const Bounded decay =
        one - lr * static_cast<double>(spec.weight_decay) * static_cast<double>(mask);
    Agreement m_agreement, v_agreement, p_agreement;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const Bounded g = Bounded(gradient.at(i)) * clip;
      Bounded m = beta1 * old_first.at(i) + (one - beta1) * g;
      Bounded v = beta2 * old_second.at(i) + (one - beta2) * g * g;
      if (first_type == DType::bf16) m = rounded_to_bf16(m);
      if (second_type == DType::bf16) v = rounded_to_bf16(v);
      m_agreement.add(first.at(i), m);
      v_agreement.add(second.at(i), v);
      // p uses the stored moments.
      const Bounded denominator =
          sqrt(Bounded(second.at(i))) / sqrt(one - power2) + static_cast<double>(spec.epsilon);
      const Bounded p =
          decay * old_master.at(i) - lr / (one - power1) * (Bounded(first.at(i)) / denominator);
      p_agreement.add(master.at(i), p);
      REQUIRE(working.at(i) ==
              numerics::from_bf16(numerics::to_bf16(static_cast<float>(master.at(i)))));
    }
    CHECK(m_agreement.worst() <= 1.0);
    CHECK(v_agreement.worst() <= 1.0);
    CHECK(p_agreement.worst() <= 1.0);
  }
}

TEST_CASE("bf16 weights and gradients are those of an fp32 update, rounded once") {
  const std::int64_t rows = 3, cols = 1500;
  const UpdateSpec spec;
  const auto rounded = [](const Matrix& values) {
    Matrix result(DType::bf16, values.rows(), values.cols());
    for (std::int64_t i = 0; i < values.rows() * values.cols(); ++i) result.set(i, values.at(i));
    return result;
  };
  const auto widened = [](const Matrix& values) {
    Matrix result(DType::f32, values.rows(), values.cols());
    for (std::int64_t i = 0; i < values.rows() * values.cols(); ++i) result.set(i, values.at(i));
    return result;
  };
  Matrix weights = rounded(Matrix::random(DType::f32, rows, cols, 2));
  Matrix gradient = rounded(Matrix::random(DType::f32, rows, cols, 3, 0.5));
  Matrix first = rounded(Matrix::random(DType::f32, rows, cols, 4));
  Matrix second(DType::bf16, rows, cols);
  Matrix scalars(DType::f32, 1, StepScalar::kCount),
      wide_scalars(DType::f32, 1, StepScalar::kCount);
  Matrix wide_weights = widened(weights), wide_gradient = widened(gradient);
  Matrix working(DType::bf16, rows, cols), wide_first = first, wide_second = second;
  for (Matrix* s : {&scalars, &wide_scalars}) s->set(StepScalar::kLearningRate, 1e-2);
  cpu::run(ops::AccumulateSquareSum{std::array{gradient.view()}, scalars.view()});
  cpu::run(ops::AccumulateSquareSum{std::array{wide_gradient.view()}, wide_scalars.view()});
  CHECK(scalars.at(StepScalar::kGradNormSquared) == wide_scalars.at(StepScalar::kGradNormSquared));
  for (Matrix* s : {&scalars, &wide_scalars}) cpu::run(ops::BeginUpdate{spec, s->view()});
  cpu::run(ops::AdamW{spec,
                      scalars.view(),
                      1.0f,
                      {weights.view(), {}, gradient.view(), first.view(), second.view()}});
  cpu::run(ops::AdamW{spec,
                      wide_scalars.view(),
                      1.0f,
                      {wide_weights.view(), working.view(), wide_gradient.view(), wide_first.view(),
                       wide_second.view()}});
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    REQUIRE(weights.at(i) == working.at(i));
    REQUIRE(first.at(i) == wide_first.at(i));
    REQUIRE(second.at(i) == wide_second.at(i));
  }
}

TEST_CASE("a master in bf16 has no working copy") {
  Matrix weights(DType::bf16, 2, 8), copy(DType::bf16, 2, 8), state(DType::f32, 2, 8);
  Matrix scalars(DType::f32, 1, StepScalar::kCount);
  const UpdateSpec spec;
  const ops::AdamW op{spec,
                      scalars.view(),
                      1.0f,
                      {weights.view(), copy.view(), state.view(), state.view(), state.view()}};
  CHECK_THROWS_AS(op.check(), Error);
}
