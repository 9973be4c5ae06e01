// Elementwise operations and column sums.
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {
namespace {

constexpr double kSqrt2OverPi = 0.797884560802865355880;

/// A function at every element, and its derivative.
struct Evaluated {
  Eigen::ArrayXXd value, slope;
};

Evaluated silu(const Eigen::ArrayXXd& x) {
  const Eigen::ArrayXXd sigmoid = 1.0 / (1.0 + (-x).exp());
  return {x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))};
}

Evaluated gelu_tanh(const Eigen::ArrayXXd& x) {
  const Eigen::ArrayXXd t = (kSqrt2OverPi * (x + 0.044715 * x.cube())).tanh();
  const Eigen::ArrayXXd inner = kSqrt2OverPi * (1.0 + 3 * 0.044715 * x.square());
  return {0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t.square()) * inner};
}

Evaluated relu2(const Eigen::ArrayXXd& x) { return {x.max(0.0).square(), 2.0 * x.max(0.0)}; }

Evaluated evaluated(Gate gate, const Eigen::ArrayXXd& x) {
  return gate == Gate::silu ? silu(x) : gelu_tanh(x);
}

Evaluated evaluated(Activation kind, const Eigen::ArrayXXd& x) {
  return kind == Activation::relu2 ? relu2(x) : gelu_tanh(x);
}

}  // namespace

void run(const ops::Copy& op) { matrix(op.destination) = matrix(op.source); }

void run(const ops::Add& op) { matrix(op.sum) = (matrix(op.a) + matrix(op.b)).eval(); }

void run(const ops::WeightedSum& op) {
  Matrix sum = static_cast<double>(op.factor_a) * matrix(op.a);
  if (!op.b.empty()) sum += static_cast<double>(op.factor_b) * matrix(op.b);
  matrix(op.sum) = sum;
}

void run(const ops::BiasBackward& op) { matrix(op.dbias) += matrix(op.dy).colwise().sum(); }

void run(const ops::RowCosines& op) {
  for (std::int64_t row = 0; row < op.a.rows; ++row) {
    const auto a = matrix(op.a).row(row), b = matrix(op.b).row(row);
    const double lengths = a.norm() * b.norm();
    element(op.cosines, row) = lengths <= 0.0 ? 0.0 : std::abs(a.dot(b)) / lengths;
  }
}

void run(const ops::GatedForward& op) {
  const auto gate = matrix(op.gate_up.columns(0, op.out.cols)).array();
  const auto up = matrix(op.gate_up.columns(op.out.cols, op.out.cols)).array();
  matrix(op.out) = (evaluated(op.gate, gate).value * up).matrix();
}

void run(const ops::GatedBackward& op) {
  const auto gate = matrix(op.gate_up.columns(0, op.dout.cols)).array();
  const auto up = matrix(op.gate_up.columns(op.dout.cols, op.dout.cols)).array();
  const auto upstream = matrix(op.dout).array();
  const Evaluated f = evaluated(op.gate, gate);
  const Eigen::ArrayXXd dgate = upstream * up * f.slope, dup = upstream * f.value;
  matrix(op.dgate_up.columns(0, op.dout.cols)) = dgate.matrix();
  matrix(op.dgate_up.columns(op.dout.cols, op.dout.cols)) = dup.matrix();
}

void run(const ops::ActivationForward& op) {
  matrix(op.out) = evaluated(op.kind, matrix(op.x).array()).value.matrix();
}

void run(const ops::ActivationBackward& op) {
  matrix(op.dx) =
      (matrix(op.dout).array() * evaluated(op.kind, matrix(op.x).array()).slope).matrix();
}

namespace {

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// xIELU, its derivatives by x, and those by its two factors.
struct Xielu {
  double alpha_p, alpha_n;
  Xielu(const TensorView& p, const TensorView& n)
      : alpha_p(softplus(element(p, 0))), alpha_n(0.5 + softplus(element(n, 0))) {}
  double value(double x) const {
    return (x > 0 ? alpha_p * x * x : alpha_n * (std::expm1(x) - x)) + 0.5 * x;
  }
  double slope(double x) const { return (x > 0 ? 2 * alpha_p * x : alpha_n * std::expm1(x)) + 0.5; }
};

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void run(const ops::XieluForward& op) {
  const Xielu xielu(op.p, op.n);
  matrix(op.out) = matrix(op.x).unaryExpr([&](double x) { return xielu.value(x); }).eval();
}

void run(const ops::XieluBackward& op) {
  const Xielu xielu(op.p, op.n);
  const Matrix x = matrix(op.x), dout = matrix(op.dout);
  if (!op.terms.empty()) {
    const double slope_p = logistic(element(op.p, 0)), slope_n = logistic(element(op.n, 0));
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      double by_p = 0, by_n = 0;
      for (std::int64_t c = 0; c < x.cols(); ++c) {
        const double v = x(row, c);
        if (v > 0) {
          by_p += dout(row, c) * v * v;
        } else {
          by_n += dout(row, c) * (std::expm1(v) - v);
        }
      }
      matrix(op.terms)(row, 0) = by_p * slope_p;
      matrix(op.terms)(row, 1) = by_n * slope_n;
    }
  }
  matrix(op.dx) = dout.cwiseProduct(x.unaryExpr([&](double v) { return xielu.slope(v); })).eval();
}

void run(const ops::DynamicTanhForward& op) {
  const double alpha = element(op.alpha, 0);
  matrix(op.out) = matrix(op.x).unaryExpr([&](double x) { return std::tanh(alpha * x); }).eval();
}

void run(const ops::DynamicTanhBackward& op) {
  const double alpha = element(op.alpha, 0);
  const Matrix x = matrix(op.x);
  const Matrix slopes = matrix(op.dout).cwiseProduct(x.unaryExpr([&](double v) {
    const double y = std::tanh(alpha * v);
    return 1.0 - y * y;
  }));
  if (!op.terms.empty()) matrix(op.terms) = slopes.cwiseProduct(x).rowwise().sum();
  matrix(op.dx) = alpha * slopes;
}

}  // namespace fp8lab::truth
