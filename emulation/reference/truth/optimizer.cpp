// The end of a training step.
#include <algorithm>
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {
namespace {

/// A fresh power of 0 stands for beta^0 = 1.
void multiply_power(double& power, float beta) {
  power = (power == 0 ? 1.0 : power) * static_cast<double>(beta);
}

}  // namespace

void run(const ops::AccumulateSquareSum& op) {
  element(op.scalars, StepScalar::kGradNormSquared) += matrix(op.gradient).squaredNorm();
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
  const double rate = element(op.scalars, StepScalar::kLearningRate);
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

}  // namespace fp8lab::truth
