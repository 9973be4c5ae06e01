// Activations without a gate against their formulas in double precision, and against their
// definitions written out.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "tests/bounded.hpp"
#include "tests/derivative.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

const double kLinear = 2.0 * std::sqrt(2.0 / 3.14159265358979323846);
const double kCubic = kLinear * 0.044715;

double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(0.5 * kLinear * (x + 0.044715 * x * x * x)));
}

/// GELU and its derivative by the formulas of emulation/ops/pointwise/activation.hpp.
struct BoundedGelu {
  explicit BoundedGelu(double point) {
    const Bounded x = point, linear = rounded(kLinear, 0.0);
    const Bounded sig = sigmoid(x * (linear + rounded(kCubic, 0.0) * (x * x)));
    const Bounded v = x * (sig * (Bounded(1.0) - sig));
    value = x * sig;
    slope = sig + (v * linear + v * x * x * rounded(3.0 * kCubic, 0.0));
  }
  Bounded value, slope;
};

/// Every BF16 value up to `largest` in magnitude, with random further bits in FP32.
Matrix all_values(DType dtype, double largest) {
  std::vector<double> values;
  std::mt19937 generator(1);
  for (std::uint32_t code = 0; code < 0x10000u; ++code) {
    const std::uint32_t below = dtype == DType::f32 ? generator() & 0xFFFFu : 0;
    const double value = static_cast<double>(numerics::bits_float(code << 16 | below));
    if (std::fabs(value) <= largest) values.push_back(value);
  }
  Matrix matrix(dtype, 2, static_cast<std::int64_t>(values.size() / 2));
  for (std::int64_t i = 0; i < 2 * matrix.cols(); ++i) {
    matrix.set(i, values[static_cast<std::size_t>(i)]);
  }
  return matrix;
}

}  // namespace

TEST_CASE("gelu and its gradient follow the tanh form at every bf16 value") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix x = all_values(dtype, 16.0);
  REQUIRE(x.cols() > 16700);
  Matrix dout = Matrix::random(dtype, 2, x.cols(), 2), out = x, dx = x;
  cpu::run(ops::ActivationForward{Activation::gelu_tanh, x.view(), out.view()});
  cpu::run(ops::ActivationBackward{Activation::gelu_tanh, x.view(), dout.view(), dx.view()});
  Agreement forward, backward;
  double formula = 0.0;
  for (std::int64_t i = 0; i < 2 * x.cols(); ++i) {
    const BoundedGelu expected(x.at(i));
    forward.add(out.at(i), stored(expected.value, dtype));
    backward.add(dx.at(i), stored(Bounded(dout.at(i)) * expected.slope, dtype));
    // 1 + tanh cancels for negative x: a few units of 2^-53 of x.
    formula = std::max(formula, std::fabs(expected.value.value - gelu_tanh(x.at(i))));
    if (i % 7 != 0) continue;
    const auto loss = [](const std::vector<double>& z) { return gelu_tanh(z[0]); };
    REQUIRE(is_derivative(expected.slope.value, central_difference({x.at(i)}, 0, loss)));
  }
  CHECK(forward.worst() <= 1.0);
  CHECK(backward.worst() <= 1.0);
  CHECK(formula < 1e-14);
}

TEST_CASE("gelu has the bits of its definition, of any values in strided views") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 37, cols = 77, first = 3;
  Matrix x = difficult(dtype, rows, cols + 8, 1), dout = difficult(dtype, rows, cols + 8, 2);
  Matrix out = Matrix::random(dtype, rows, cols + 8, 3), dx = out, sigmoids = out, slopes = dx;
  const auto part = [&](Matrix& matrix) { return matrix.view().columns(first, cols); };
  cpu::run(ops::ActivationForward{Activation::gelu_tanh, part(x), part(out)});
  cpu::run(ops::ActivationBackward{Activation::gelu_tanh, part(x), part(dout), part(dx)});
  const auto a = static_cast<float>(kLinear), b = static_cast<float>(kCubic);
  const auto c = static_cast<float>(3.0 * kCubic);
  Matrix expected = sigmoids, gradient = slopes;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = first; i < first + cols; ++i) {
      const auto value = static_cast<float>(x.at(t, i));
      const float sig = numerics::sigmoid(value * (a + b * (value * value)));
      const float v = value * (sig * (1.0f - sig));
      const float slope = sig + (v * a + v * value * value * c);
      const float d = static_cast<float>(dout.at(t, i)) * slope;
      expected.set(t, i, static_cast<double>(numerics::canonical_nan(value * sig)));
      gradient.set(t, i, static_cast<double>(numerics::canonical_nan(d)));
    }
  }
  CHECK(out.bytes() == expected.bytes());
  CHECK(dx.bytes() == gradient.bytes());
  Matrix over_x = x, over_dout = dout, over_out = x;
  cpu::run(
      ops::ActivationBackward{Activation::gelu_tanh, part(x), part(over_dout), part(over_dout)});
  cpu::run(ops::ActivationBackward{Activation::gelu_tanh, part(over_x), part(dout), part(over_x)});
  cpu::run(ops::ActivationForward{Activation::gelu_tanh, part(over_out), part(over_out)});
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = first; i < first + cols; ++i) {
      const auto bits = [&](const Matrix& m) {
        return numerics::float_bits(static_cast<float>(m.at(t, i)));
      };
      REQUIRE(bits(over_x) == bits(dx));
      REQUIRE(bits(over_dout) == bits(dx));
      REQUIRE(bits(over_out) == bits(out));
    }
  }
}

TEST_CASE("gelu of every finite number is finite, and of large ones the number or zero") {
  const double largest = static_cast<double>(std::numeric_limits<float>::max());
  const double values[] = {16.0, 1e10, 2e19, 1e30, largest};
  Matrix x(DType::f32, 1, 10), one = x, out = x, dx = x;
  for (std::int64_t i = 0; i < 10; ++i) {
    x.set(i, i % 2 == 0 ? values[i / 2] : -values[i / 2]);
    one.set(i, 1.0);
  }
  cpu::run(ops::ActivationForward{Activation::gelu_tanh, x.view(), out.view()});
  cpu::run(ops::ActivationBackward{Activation::gelu_tanh, x.view(), one.view(), dx.view()});
  for (std::int64_t i = 0; i < 10; ++i) {
    INFO("x " << x.at(i));
    CHECK(out.at(i) == (i % 2 == 0 ? x.at(i) : 0.0));
    CHECK(dx.at(i) == (i % 2 == 0 ? 1.0 : 0.0));
  }
}

TEST_CASE("relu2 and its gradient are those of the squared positive part, at every bf16 value") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix x = all_values(dtype, 16.0);
  Matrix dout = Matrix::random(dtype, 2, x.cols(), 2), out = x, dx = x;
  cpu::run(ops::ActivationForward{Activation::relu2, x.view(), out.view()});
  cpu::run(ops::ActivationBackward{Activation::relu2, x.view(), dout.view(), dx.view()});
  Agreement forward, backward;
  for (std::int64_t i = 0; i < 2 * x.cols(); ++i) {
    const Bounded positive(std::max(x.at(i), 0.0));
    const Bounded slope = positive + positive;
    forward.add(out.at(i), stored(positive * positive, dtype));
    backward.add(dx.at(i), stored(Bounded(dout.at(i)) * slope, dtype));
    if (i % 7 != 0 || std::fabs(x.at(i)) < 0.01) continue;  // the slope has a bend at 0
    const auto loss = [](const std::vector<double>& z) {
      return std::max(z[0], 0.0) * std::max(z[0], 0.0);
    };
    REQUIRE(is_derivative(slope.value, central_difference({x.at(i)}, 0, loss)));
  }
  CHECK(forward.worst() <= 1.0);
  CHECK(backward.worst() <= 1.0);
}

TEST_CASE("relu2 has the bits of its definition, of any values in strided views") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 37, cols = 77, first = 3;
  Matrix x = difficult(dtype, rows, cols + 8, 1), dout = difficult(dtype, rows, cols + 8, 2);
  Matrix out = Matrix::random(dtype, rows, cols + 8, 3), dx = out, expected = out, gradient = dx;
  const auto part = [&](Matrix& matrix) { return matrix.view().columns(first, cols); };
  cpu::run(ops::ActivationForward{Activation::relu2, part(x), part(out)});
  cpu::run(ops::ActivationBackward{Activation::relu2, part(x), part(dout), part(dx)});
  std::size_t infinite = 0, unknown = 0, zeros = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = first; i < first + cols; ++i) {
      const auto v = static_cast<float>(x.at(t, i)), d = static_cast<float>(dout.at(t, i));
      const float square = v <= 0.0f ? 0.0f : v * v, slope = v <= 0.0f ? 0.0f : d * (v + v);
      expected.set(t, i, static_cast<double>(numerics::canonical_nan(square)));
      gradient.set(t, i, static_cast<double>(numerics::canonical_nan(slope)));
      infinite += std::isinf(square) ? 1 : 0;
      unknown += std::isnan(square) ? 1 : 0;
      zeros += v <= 0.0f && !std::isfinite(d) ? 1 : 0;
    }
  }
  CHECK(out.bytes() == expected.bytes());
  CHECK(dx.bytes() == gradient.bytes());
  CHECK((infinite > 0 && unknown > 0 && zeros > 0));  // the cases are there
  Matrix over_x = x, over_dout = dout;
  cpu::run(ops::ActivationBackward{Activation::relu2, part(over_x), part(dout), part(over_x)});
  cpu::run(ops::ActivationBackward{Activation::relu2, part(x), part(over_dout), part(over_dout)});
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = first; i < first + cols; ++i) {
      const auto bits = [&](const Matrix& m) {
        return numerics::float_bits(static_cast<float>(m.at(t, i)));
      };
      REQUIRE(bits(over_x) == bits(dx));
      REQUIRE(bits(over_dout) == bits(dx));
    }
  }
}

TEST_CASE("activations refuse shapes and types that do not fit by name") {
  Matrix a(DType::bf16, 3, 4), b(DType::bf16, 3, 5), c(DType::f64, 3, 4);
  CHECK_THROWS_WITH(cpu::run(ops::ActivationForward{Activation::gelu_tanh, b.view(), a.view()}),
                    "activation_forward: x is bf16 (3, 5), expected bf16 or f32 (3, 4)");
  CHECK_THROWS_WITH(cpu::run(ops::ActivationForward{Activation::gelu_tanh, a.view(), c.view()}),
                    "activation_forward: out is f64 (3, 4), expected bf16 or f32 (3, 4)");
  CHECK_THROWS_WITH(
      cpu::run(ops::ActivationBackward{Activation::gelu_tanh, a.view(), b.view(), b.view()}),
      "activation_backward: x is bf16 (3, 4), expected bf16 or f32 (3, 5)");
  CHECK_THROWS_WITH(
      cpu::run(ops::ActivationBackward{Activation::gelu_tanh, a.view(), a.view(), {}}),
      "activation_backward: dx is missing, expected bf16 or f32 (3, 4)");
}
