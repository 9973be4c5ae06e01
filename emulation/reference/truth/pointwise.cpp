// Elementwise operations and column sums.
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {
namespace {

constexpr double kSqrt2OverPi = 0.797884560802865355880;

/// Returns the tanh term of GELU.
Eigen::ArrayXXd gelu_tanh(const Eigen::ArrayXXd& x) {
  return (kSqrt2OverPi * (x + 0.044715 * x.cube())).tanh();
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

void run(const ops::SwigluForward& op) {
  const auto gate = matrix(op.gate_up.columns(0, op.out.cols)).array();
  const auto up = matrix(op.gate_up.columns(op.out.cols, op.out.cols)).array();
  matrix(op.out) = (gate / (1.0 + (-gate).exp()) * up).matrix();
}

void run(const ops::SwigluBackward& op) {
  const auto gate = matrix(op.gate_up.columns(0, op.dout.cols)).array();
  const auto up = matrix(op.gate_up.columns(op.dout.cols, op.dout.cols)).array();
  const auto upstream = matrix(op.dout).array();
  const Eigen::ArrayXXd sigmoid = 1.0 / (1.0 + (-gate).exp());
  const Eigen::ArrayXXd dgate = upstream * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
  const Eigen::ArrayXXd dup = upstream * gate * sigmoid;
  matrix(op.dgate_up.columns(0, op.dout.cols)) = dgate.matrix();
  matrix(op.dgate_up.columns(op.dout.cols, op.dout.cols)) = dup.matrix();
}

void run(const ops::ActivationForward& op) {
  const Eigen::ArrayXXd x = matrix(op.x).array();
  switch (op.kind) {
    case Activation::gelu_tanh: matrix(op.out) = (0.5 * x * (1.0 + gelu_tanh(x))).matrix(); return;
    case Activation::relu2: matrix(op.out) = x.max(0.0).square().matrix(); return;
  }
}

void run(const ops::ActivationBackward& op) {
  const Eigen::ArrayXXd x = matrix(op.x).array();
  const auto slope = [&]() -> Eigen::ArrayXXd {
    if (op.kind == Activation::relu2) return 2.0 * x.max(0.0);
    const Eigen::ArrayXXd t = gelu_tanh(x);
    const Eigen::ArrayXXd inner = kSqrt2OverPi * (1.0 + 3 * 0.044715 * x.square());
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t.square()) * inner;
  };
  matrix(op.dx) = (matrix(op.dout).array() * slope()).matrix();
}

}  // namespace fp8lab::truth
