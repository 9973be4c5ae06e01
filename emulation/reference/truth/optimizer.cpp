// The end of a training step.
#include <algorithm>
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {
namespace {

/// Multiplies a power of beta; a fresh power of 0 stands for beta^0 = 1.
void multiply_power(double& power, float beta) {
  power = (power == 0 ? 1.0 : power) * static_cast<double>(beta);
}

double rate_of(const UpdateSpec& spec, const TensorView& scalars) {
  return element(scalars, StepScalar::kLearningRate) * static_cast<double>(spec.rate_factor);
}

Eigen::ArrayXXd clipped(const TensorView& gradient, const TensorView& scalars) {
  return matrix(gradient.flat()).array() * element(scalars, StepScalar::kClipFactor);
}

/// Computes w * 2^(-rate * n), away from zero or towards it, with the
/// integer n next to g / sqrt(v).
void multiply_weights(const ops::UpdateWeights& op, const Eigen::ArrayXXd& gradient, double rate) {
  const double correction = 1 - element(op.scalars, StepScalar::kBeta2Power);
  const auto limit = static_cast<double>(op.spec.gradient_bound);
  const double largest = element(op.weight_bound, 0);
  auto weights = matrix(op.master.flat()).array();
  const auto second = matrix(op.second_moment.flat()).array();
  for (Eigen::Index i = 0; i < weights.size(); ++i) {
    const double normed = gradient(i) / std::sqrt(second(0, i) / correction);
    const double n = std::isnan(normed) ? 0.0 : std::nearbyint(std::clamp(normed, -limit, limit));
    const double step = weights(0, i) > 0 ? -rate * n : rate * n;
    weights(0, i) = std::clamp(weights(0, i) * std::exp2(step), -largest, largest);
  }
}

}  // namespace

void run(const ops::AccumulateSquareSum& op) {
  for (const TensorView& gradient : op.gradients) {
    element(op.scalars, StepScalar::kGradNormSquared) += matrix(gradient).squaredNorm();
  }
}

void run(const ops::BeginUpdate& op) {
  const double norm = std::sqrt(element(op.scalars, StepScalar::kGradNormSquared));
  element(op.scalars, StepScalar::kGradNorm) = norm;
  const auto limit = static_cast<double>(op.spec.clip_norm);
  element(op.scalars, StepScalar::kClipFactor) =
      limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
  multiply_power(element(op.scalars, StepScalar::kBeta1Power), op.spec.beta1);
  multiply_power(element(op.scalars, StepScalar::kBeta2Power), op.spec.beta2);
}

void run(const ops::AdamW& op) {
  const double rate = rate_of(op.spec, op.scalars);
  const double beta1 = static_cast<double>(op.spec.beta1),
               beta2 = static_cast<double>(op.spec.beta2);
  const Eigen::ArrayXXd gradient =
      matrix(op.tensors.gradient).array() * element(op.scalars, StepScalar::kClipFactor);
  auto first = matrix(op.tensors.first_moment).array();
  auto second = matrix(op.tensors.second_moment).array();
  first = beta1 * first + (1 - beta1) * gradient;
  second = beta2 * second + (1 - beta2) * gradient.square();
  const double correction1 = 1 - element(op.scalars, StepScalar::kBeta1Power);
  const double correction2 = 1 - element(op.scalars, StepScalar::kBeta2Power);
  auto master = matrix(op.tensors.master).array();
  master *=
      1 - rate * static_cast<double>(op.spec.weight_decay) * static_cast<double>(op.decay_mask);
  master -= rate / correction1 * first /
            ((second / correction2).sqrt() + static_cast<double>(op.spec.epsilon));
}

// The truth path stores states as they are computed.
void run(const ops::StoreState& op) { matrix(op.state.codes.flat()) = matrix(op.source); }

void run(const ops::LoadState& op) { matrix(op.destination) = matrix(op.state.codes.flat()); }

void run(const ops::AdvanceMoments& op) {
  const double beta1 = static_cast<double>(op.spec.beta1),
               beta2 = static_cast<double>(op.spec.beta2);
  const Eigen::ArrayXXd gradient = clipped(op.gradient, op.scalars);
  if (op.spec.has_first_moment()) {
    auto first = matrix(op.first_moment.flat()).array();
    const auto momentum = static_cast<double>(op.spec.momentum);
    switch (op.spec.rule) {
      case UpdateRule::sgd: first = beta1 * first + gradient; break;
      case UpdateRule::lion: first = beta2 * first + (1 - beta2) * gradient; break;
      case UpdateRule::muon: first = momentum * first + (1 - momentum) * gradient; break;
      default: first = beta1 * first + (1 - beta1) * gradient;
    }
  }
  if (op.spec.has_second_moment()) {
    auto second = matrix(op.second_moment.flat()).array();
    second = beta2 * second + (1 - beta2) * gradient.square();
  }
}

void run(const ops::Orthogonalize& op) {
  const auto momentum = static_cast<double>(op.spec.momentum);
  const double clip = element(op.scalars, StepScalar::kClipFactor);
  const Map update = matrix(op.update);
  const Eigen::Map<const Matrix> first(op.first_moment.row<double>(0), update.rows(),
                                       update.cols());
  Matrix x = momentum * first + (1 - momentum) * clip * matrix(op.gradient);
  x /= std::max(x.norm(), static_cast<double>(NewtonSchulz::kSmallestNorm));
  const bool is_tall = x.rows() > x.cols();
  if (is_tall) x.transposeInPlace();
  for (int step = 0; step < NewtonSchulz::kSteps; ++step) {
    const Matrix gram = x * x.transpose();
    const Matrix polynomial = static_cast<double>(NewtonSchulz::kB) * gram +
                              static_cast<double>(NewtonSchulz::kC) * gram * gram;
    x = (static_cast<double>(NewtonSchulz::kA) * x + polynomial * x).eval();
  }
  if (is_tall) x.transposeInPlace();
  matrix(op.update) = x;
}

void run(const ops::UpdateWeights& op) {
  const double rate = rate_of(op.spec, op.scalars);
  const Eigen::ArrayXXd gradient = clipped(op.gradient, op.scalars);
  if (op.spec.rule == UpdateRule::madam) return multiply_weights(op, gradient, rate);
  auto master = matrix(op.master.flat()).array();
  const auto first = matrix(op.first_moment.flat()).array();
  master *=
      1 - rate * static_cast<double>(op.spec.weight_decay) * static_cast<double>(op.decay_mask);
  if (op.spec.rule == UpdateRule::sgd) {
    master -= rate * first;
  } else if (op.spec.rule == UpdateRule::muon) {
    master -= rate * static_cast<double>(op.spec.update_factor) * first;
  } else if (op.spec.rule == UpdateRule::lion) {
    const auto beta1 = static_cast<double>(op.spec.beta1);
    master -= rate * (beta1 * first + (1 - beta1) * gradient).sign();
  } else {
    const double correction1 = 1 - element(op.scalars, StepScalar::kBeta1Power);
    const double correction2 = 1 - element(op.scalars, StepScalar::kBeta2Power);
    master -= rate / correction1 * first /
              ((matrix(op.second_moment.flat()).array() / correction2).sqrt() +
               static_cast<double>(op.spec.epsilon));
  }
}

}  // namespace fp8lab::truth
