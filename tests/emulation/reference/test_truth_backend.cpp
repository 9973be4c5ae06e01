// Layer norm, GELU and the loss of the double-precision backend: hand-worked values, and gradients
// against central differences of the forward passes.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "emulation/reference/truth_backend.hpp"
#include "tests/derivative.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

using Values = std::vector<double>;

class Truth {
 public:
  TensorView tensor(std::int64_t rows, std::int64_t cols) {
    return backend_->allocate(DType::f64, rows, cols);
  }
  template <class Element>
  TensorView vector(DType dtype, const std::vector<Element>& values) {
    const TensorView view = backend_->allocate(dtype, 1, static_cast<std::int64_t>(values.size()));
    backend_->upload(view, values.data());
    return view;
  }
  TensorView tensor(std::int64_t rows, std::int64_t cols, const Values& values) {
    const TensorView view = tensor(rows, cols);
    backend_->upload(view, values.data());
    return view;
  }
  Values read(const TensorView& view) {
    Values values(static_cast<std::size_t>(view.size()));
    backend_->download(values.data(), view);
    return values;
  }
  template <class Op>
  void run(const Op& op) {
    backend_->run(op);
  }

 private:
  std::unique_ptr<Backend> backend_ = reference::make_truth_backend(1);
};

Values waves(std::size_t count, double phase) {
  Values values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(1.5 * std::sin(2.0 * static_cast<double>(i) + phase));
  }
  return values;
}

double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Each element of `gradient` is the derivative of `loss` in the argument of that index.
template <class Loss>
void check_gradient(const Values& at, const Values& gradient, const Loss& loss) {
  REQUIRE(at.size() == gradient.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    INFO("argument " << i);
    CHECK(is_derivative(gradient[i], central_difference(at, i, loss)));
  }
}

constexpr std::int64_t kRows = 3, kCols = 5;
constexpr float kEpsilon = 1.0f;

struct Normed {
  TensorView x, weight, bias, y, mean, rstd;
};

Normed layer_norm(Truth& truth, const Values& x, const Values& weight, const Values& bias) {
  const Normed n{truth.tensor(kRows, kCols, x), truth.tensor(1, kCols, weight),
                 truth.tensor(1, kCols, bias),  truth.tensor(kRows, kCols),
                 truth.tensor(1, kRows),        truth.tensor(1, kRows)};
  truth.run(ops::LayerNormForward{n.x, n.weight, n.bias, kEpsilon, n.y, n.mean, n.rstd});
  return n;
}

}  // namespace

TEST_CASE("the truth of layer norm: hand-worked values, gradients of all its arguments") {
  Truth truth;
  const Values x = waves(kRows * kCols, 0.3), weight = waves(kCols, 1.0), bias = waves(kCols, 2.0);
  const Values dy = waves(kRows * kCols, 4.0);
  const auto loss = [&](const Values& a, const Values& w, const Values& b) {
    return dot(dy, truth.read(layer_norm(truth, a, w, b).y));
  };
  const Normed normed = layer_norm(truth, x, weight, bias);
  const TensorView dx = truth.tensor(kRows, kCols), dweight = truth.tensor(1, kCols, weight);
  const TensorView dbias = truth.tensor(1, kCols, bias);
  truth.run(ops::LayerNormBackward{truth.tensor(kRows, kCols, dy), normed.x, normed.weight,
                                   normed.mean, normed.rstd, dx, dweight, dbias});
  check_gradient(x, truth.read(dx), [&](const Values& z) { return loss(z, weight, bias); });
  const auto added = [&](const TensorView& sum, const Values& before) {
    Values values = truth.read(sum);
    for (std::size_t i = 0; i < before.size(); ++i) values[i] -= before[i];
    return values;
  };
  check_gradient(weight, added(dweight, weight), [&](const Values& z) { return loss(x, z, bias); });
  check_gradient(bias, added(dbias, bias), [&](const Values& z) { return loss(x, weight, z); });

  // Mean 3 and variance 8, so that 1 / sqrt(8 + epsilon) = 1 / 3.
  const Normed first = layer_norm(truth, {-1, 1, 3, 5, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                  {3, 3, 3, 3, 6}, {0, 0, 5, 0, 1});
  CHECK(truth.read(first.mean)[0] == Approx(3.0).epsilon(1e-15));
  CHECK(truth.read(first.rstd)[0] == Approx(1.0 / 3.0).epsilon(1e-15));
  const double expected[] = {-4, -2, 5, 2, 9};
  for (std::size_t c = 0; c < 5; ++c) {
    CHECK(truth.read(first.y)[c] == Approx(expected[c]).epsilon(1e-15));
  }
}

TEST_CASE("the truth of gelu: values of its tanh form, and its gradient") {
  Truth truth;
  const Values x = waves(12, 0.7), dout = waves(12, 3.0);
  const auto gelu = [&](const Values& z) {
    const TensorView out = truth.tensor(3, 4);
    truth.run(ops::ActivationForward{Activation::gelu_tanh, truth.tensor(3, 4, z), out});
    return truth.read(out);
  };
  const TensorView dx = truth.tensor(3, 4);
  truth.run(ops::ActivationBackward{Activation::gelu_tanh, truth.tensor(3, 4, x),
                                    truth.tensor(3, 4, dout), dx});
  check_gradient(x, truth.read(dx), [&](const Values& z) { return dot(dout, gelu(z)); });
  Values points(12, 0.0);
  points[0] = 1.0;
  points[1] = -2.0;
  const Values values = gelu(points);
  CHECK(values[0] == Approx(0.8411919906082767048).epsilon(1e-14));
  CHECK(values[1] == Approx(-0.0454023059122249812).epsilon(1e-14));
  CHECK(values[2] == 0.0);
}

TEST_CASE("the truth of gates: GEGLU and SwiGLU with their gradients") {
  const Gate gate = GENERATE(Gate::silu, Gate::gelu_tanh);
  Truth truth;
  const Values gate_up = waves(24, 0.7), dout = waves(12, 3.0);
  const auto value = [&](const Values& z) {
    const TensorView out = truth.tensor(3, 4);
    truth.run(ops::GatedForward{gate, truth.tensor(3, 8, z), out});
    return truth.read(out);
  };
  const TensorView dgate_up = truth.tensor(3, 8);
  truth.run(
      ops::GatedBackward{gate, truth.tensor(3, 8, gate_up), truth.tensor(3, 4, dout), dgate_up});
  check_gradient(gate_up, truth.read(dgate_up),
                 [&](const Values& z) { return dot(dout, value(z)); });
  Values points(24, 0.0);
  points[0] = 1.0;
  points[4] = 3.0;
  const double at_one = gate == Gate::silu ? 0.73105857863000487925 : 0.8411919906082767048;
  CHECK(value(points)[0] == Approx(3.0 * at_one).epsilon(1e-14));
}

TEST_CASE("the truth of relu2: the square of the positive part, and its gradient") {
  Truth truth;
  const Values x = waves(12, 0.7), dout = waves(12, 3.0);
  const auto relu2 = [&](const Values& z) {
    const TensorView out = truth.tensor(3, 4);
    truth.run(ops::ActivationForward{Activation::relu2, truth.tensor(3, 4, z), out});
    return truth.read(out);
  };
  const TensorView dx = truth.tensor(3, 4);
  truth.run(ops::ActivationBackward{Activation::relu2, truth.tensor(3, 4, x),
                                    truth.tensor(3, 4, dout), dx});
  check_gradient(x, truth.read(dx), [&](const Values& z) { return dot(dout, relu2(z)); });
  const Values values = relu2({3.0, -2.0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK((values[0] == 9.0 && values[1] == 0.0 && values[2] == 0.25 && values[3] == 0.0));
}

TEST_CASE("the truth of xIELU: values, and its gradients by x and by its two numbers") {
  Truth truth;
  const Values x = waves(12, 0.7), dout = waves(12, 3.0), p = {0.3}, n = {-0.4};
  const auto value = [&](const Values& z, const Values& by_p, const Values& by_n) {
    const TensorView out = truth.tensor(3, 4);
    truth.run(ops::XieluForward{truth.tensor(3, 4, z), truth.tensor(1, 1, by_p),
                                truth.tensor(1, 1, by_n), out});
    return truth.read(out);
  };
  const TensorView dx = truth.tensor(3, 4), terms = truth.tensor(3, 2);
  truth.run(ops::XieluBackward{truth.tensor(3, 4, x), truth.tensor(1, 1, p), truth.tensor(1, 1, n),
                               truth.tensor(3, 4, dout), dx, terms});
  check_gradient(x, truth.read(dx), [&](const Values& z) { return dot(dout, value(z, p, n)); });
  const Values rows = truth.read(terms);
  check_gradient(p, {rows[0] + rows[2] + rows[4]},
                 [&](const Values& z) { return dot(dout, value(x, z, n)); });
  check_gradient(n, {rows[1] + rows[3] + rows[5]},
                 [&](const Values& z) { return dot(dout, value(x, p, z)); });
  Values points(12, 0.0);
  points[0] = 2.0;
  points[1] = -1.0;
  const double by_p = std::log1p(std::exp(0.3)), by_n = 0.5 + std::log1p(std::exp(-0.4));
  const Values values = value(points, p, n);
  CHECK(values[0] == Approx(4.0 * by_p + 1.0).epsilon(1e-14));
  CHECK(values[1] == Approx(by_n * std::exp(-1.0) - 0.5).epsilon(1e-14));
  CHECK(values[2] == 0.0);
}

TEST_CASE("the truth of tanh(alpha x): values, and its gradients by x and by alpha") {
  Truth truth;
  const Values x = waves(12, 0.7), dout = waves(12, 3.0), alpha = {1.3};
  const auto value = [&](const Values& z, const Values& by) {
    const TensorView out = truth.tensor(3, 4);
    truth.run(ops::DynamicTanhForward{truth.tensor(3, 4, z), truth.tensor(1, 1, by), out});
    return truth.read(out);
  };
  const TensorView dx = truth.tensor(3, 4), terms = truth.tensor(3, 1);
  truth.run(ops::DynamicTanhBackward{truth.tensor(3, 4, x), truth.tensor(1, 1, alpha),
                                     truth.tensor(3, 4, dout), dx, terms});
  check_gradient(x, truth.read(dx), [&](const Values& z) { return dot(dout, value(z, alpha)); });
  const Values rows = truth.read(terms);
  check_gradient(alpha, {rows[0] + rows[1] + rows[2]},
                 [&](const Values& z) { return dot(dout, value(x, z)); });
  Values points(12, 0.0);
  points[0] = std::log(3.0) / 2.6;  // tanh(log(3) / 2) = 1/2
  const Values values = value(points, alpha);
  CHECK(values[0] == Approx(0.5).epsilon(1e-14));
  CHECK(values[2] == 0.0);
}

TEST_CASE("the truth of the loss: hand-worked values, and nothing is read of a masked token") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Truth truth;
  const TensorView logits = truth.tensor(2, 2, {0, std::log(3.0), kInfinity, 0});
  const TensorView targets = truth.vector(DType::i32, std::vector<std::int32_t>{1, -1});
  const TensorView weights = truth.vector(DType::f32, std::vector<float>{1, 0});
  Values step(StepScalar::kCount, 0.0);
  step[StepScalar::kInverseTokens] = 0.5;
  step[StepScalar::kLossSum] = 2.0;
  const TensorView scalars = truth.vector(DType::f64, step);
  const TensorView loss = truth.tensor(1, 2, {7, 7}), dlogits = truth.tensor(2, 2, {7, 7, 7, 7});
  truth.run(ops::CrossEntropy{logits, targets, weights, scalars, loss, dlogits});
  const double expected = std::log(4.0 / 3.0);
  CHECK(truth.read(loss)[0] == Approx(expected).epsilon(1e-15));
  CHECK(truth.read(scalars)[StepScalar::kLossSum] == Approx(2.0 + expected).epsilon(1e-15));
  const Values gradient = truth.read(dlogits);
  CHECK(gradient[0] == Approx(0.125).epsilon(1e-15));
  CHECK(gradient[1] == Approx(-0.125).epsilon(1e-15));
  CHECK(truth.read(loss)[1] == 0.0);
  CHECK(gradient[2] == 0.0);
  CHECK(gradient[3] == 0.0);
}
