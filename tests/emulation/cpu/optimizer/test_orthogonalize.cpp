// Muon's orthogonalized momentum: against the truth path, by its properties, and its bits.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

UpdateSpec muon(float momentum = 0.95f) {
  UpdateSpec spec;
  spec.rule = UpdateRule::muon;
  spec.momentum = momentum;
  return spec;
}

/// The tensors of one matrix, in FP32 with scratch in BF16, or all in FP64.
struct Orthogonal {
  Orthogonal(const Matrix& slope, const Matrix& momentum, DType real = DType::f32)
      : rows(slope.rows()),
        cols(slope.cols()),
        gradient(real, rows, cols),
        first(real, rows, cols),
        update(real, rows, cols),
        x(narrow(real), rows, cols),
        gram(narrow(real), std::min(rows, cols), std::min(rows, cols)),
        squares(real, 1, StepScalar::kCount),
        scalars(real, 1, StepScalar::kCount) {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      gradient.set(i, slope.at(i));
      first.set(i, momentum.at(i));
    }
    scalars.set(StepScalar::kClipFactor, 0.5);
  }

  static DType narrow(DType real) { return real == DType::f32 ? DType::bf16 : real; }

  void run(Backend& backend, const UpdateSpec& spec) {
    backend.run(ops::Orthogonalize{spec, scalars.view(), gradient.view(), first.view(),
                                   update.view(), x.view(), gram.view(), squares.view()});
  }
  const Matrix& made(const UpdateSpec& spec = muon()) {
    run(*cpu::make_cpu_backend(2), spec);
    return update;
  }

  std::int64_t rows, cols;
  Matrix gradient, first, update, x, gram, squares, scalars;
};

/// Whole numbers, so that the sum of squares is exact in any order.
Matrix whole_numbers(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  Matrix matrix = Matrix::random(DType::f32, rows, cols, seed, 4.0);
  for (std::int64_t i = 0; i < rows * cols; ++i) matrix.set(i, std::nearbyint(matrix.at(i)));
  return matrix;
}

Matrix transposed(const Matrix& matrix) {
  Matrix result(DType::f32, matrix.cols(), matrix.rows());
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.cols(); ++c) result.set(c, r, matrix.at(r, c));
  }
  return result;
}

/// |a - b| / |b|, Frobenius norms.
double distance(const Matrix& a, const Matrix& b) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < a.rows() * a.cols(); ++i) {
    difference += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
    norm += b.at(i) * b.at(i);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("an orthogonalized momentum is that of double precision but for BF16") {
  const auto [rows, cols] = GENERATE(std::pair{48, 80}, std::pair{80, 48}, std::pair{33, 33},
                                     std::pair{1, 70}, std::pair{70, 1}, std::pair{1, 1});
  INFO(rows << " " << cols);
  const Matrix slope = Matrix::random(DType::f32, rows, cols, 1);
  const Matrix momentum = Matrix::random(DType::f32, rows, cols, 2);
  Orthogonal single(slope, momentum), wide(slope, momentum, DType::f64);
  wide.run(*reference::make_truth_backend(1), muon());
  // Each rounding to BF16 is 2^-9 at most; the polynomial triples the error of small values a step.
  CHECK(distance(single.made(), wide.update) < 0.02);
  // Another momentum mixes in another share of the gradient.
  Orthogonal other(slope, momentum);
  if (rows * cols > 1) CHECK(distance(other.made(muon(0.3f)), wide.update) > 0.1);
}

TEST_CASE("the rows of a wide matrix become nearly orthonormal") {
  const Matrix slope = Matrix::random(DType::f32, 40, 90, 3);
  const Matrix zero(DType::f32, 40, 90);
  Orthogonal result(slope, zero);
  const Matrix& o = result.made();
  for (std::int64_t i = 0; i < 40; ++i) {
    for (std::int64_t j = 0; j < 40; ++j) {
      double dot = 0;
      for (std::int64_t k = 0; k < 90; ++k) dot += o.at(i, k) * o.at(j, k);
      // Singular values end between 0.7 and 1.2.
      INFO(i << " " << j);
      CHECK(dot > (i == j ? 0.4 : -0.5));
      CHECK(dot < (i == j ? 1.5 : 0.5));
    }
  }
}

TEST_CASE("the transpose has the transposed update, the double matrix the same") {
  const Matrix slope = whole_numbers(37, 90, 4), momentum = whole_numbers(37, 90, 5);
  Orthogonal wide(slope, momentum), tall(transposed(slope), transposed(momentum));
  const Matrix& of_wide = wide.made(muon(0.5f));
  const Matrix back = transposed(tall.made(muon(0.5f)));
  CHECK(of_wide.bytes() == back.bytes());
  Matrix twice_slope = slope, twice_momentum = momentum;
  for (std::int64_t i = 0; i < 37 * 90; ++i) {
    twice_slope.set(i, 2 * slope.at(i));
    twice_momentum.set(i, 2 * momentum.at(i));
  }
  Orthogonal twice(twice_slope, twice_momentum);
  CHECK(twice.made(muon(0.5f)).bytes() == of_wide.bytes());
}

TEST_CASE("every number of an update is one of BF16") {
  Orthogonal result(Matrix::random(DType::f32, 20, 50, 6), Matrix::random(DType::f32, 20, 50, 7));
  const Matrix& update = result.made();
  for (std::int64_t i = 0; i < 20 * 50; ++i) {
    const auto value = static_cast<float>(update.at(i));
    REQUIRE(numerics::from_bf16(numerics::to_bf16(value)) == value);
  }
}

TEST_CASE("no gradient is no update, a NaN is one everywhere") {
  Matrix slope(DType::f32, 20, 50);
  const Matrix momentum(DType::f32, 20, 50);
  Orthogonal nothing(slope, momentum);
  nothing.made();
  for (std::int64_t i = 0; i < 20 * 50; ++i) REQUIRE(nothing.update.at(i) == 0.0);
  slope.set(7, NAN);
  Orthogonal broken(slope, momentum);
  broken.made();
  for (std::int64_t i = 0; i < 20 * 50; ++i) REQUIRE(std::isnan(broken.update.at(i)));
}

TEST_CASE("the factor of an update by the shape of its matrix") {
  CHECK(update_factor(UpdateScale::adamw_rms, 25, 100) == Approx(2.0f));
  CHECK(update_factor(UpdateScale::adamw_rms, 100, 25) == Approx(2.0f));
  CHECK(update_factor(UpdateScale::original, 25, 100) == 1.0f);
  CHECK(update_factor(UpdateScale::original, 100, 25) == 2.0f);
}

TEST_CASE("tensors that do not fit are refused by name") {
  const Matrix slope = Matrix::random(DType::f32, 20, 50, 8);
  const auto message = [&](const auto& change) {
    Orthogonal t(slope, slope);
    UpdateSpec spec = muon();
    change(t, spec);
    try {
      cpu::run(ops::Orthogonalize{spec, t.scalars.view(), t.gradient.view(), t.first.view(),
                                  t.update.view(), t.x.view(), t.gram.view(), t.squares.view()});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using T = Orthogonal;
  CHECK(message([](T&, UpdateSpec&) {}) == "accepted");
  CHECK_THAT(message([](T&, UpdateSpec& spec) { spec.rule = UpdateRule::adamw; }),
             Catch::Contains("muon"));
  CHECK_THAT(message([](T& t, UpdateSpec&) { t.x = Matrix(DType::f32, 20, 50); }),
             Catch::Contains("x is f32 (20, 50)"));
  CHECK_THAT(message([](T& t, UpdateSpec&) { t.gram = Matrix(DType::bf16, 50, 50); }),
             Catch::Contains("gram"));
  CHECK_THAT(message([](T& t, UpdateSpec&) { t.first = Matrix(DType::f32, 20, 49); }),
             Catch::Contains("first_moment"));
  CHECK_THAT(message([](T& t, UpdateSpec&) { t.gradient = Matrix(DType::f32, 50, 20); }),
             Catch::Contains("gradient"));
}
