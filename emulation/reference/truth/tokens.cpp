// Embeddings, the loss, the most likely token.
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {

void run(const ops::EmbeddingForward& op) {
  for (std::int64_t t = 0; t < op.tokens.cols; ++t) {
    matrix(op.out).row(t) = matrix(op.table).row(op.tokens.row<std::int32_t>(0)[t]);
  }
}

void run(const ops::EmbeddingBackward& op) {
  for (std::int64_t t = 0; t < op.tokens.cols; ++t) {
    matrix(op.dtable).row(op.tokens.row<std::int32_t>(0)[t]) += matrix(op.dout).row(t);
  }
}

void run(const ops::CrossEntropy& op) {
  for (std::int64_t t = 0; t < op.logits.rows; ++t) {
    const double weight = static_cast<double>(op.weights.row<float>(0)[t]);
    if (weight == 0.0) {
      element(op.token_loss, t) = 0.0;
      if (!op.dlogits.empty()) matrix(op.dlogits).row(t).setZero();
      continue;
    }
    const Eigen::ArrayXXd row = matrix(op.logits).row(t).array();
    const std::int32_t target = op.targets.row<std::int32_t>(0)[t];
    const double largest = row.maxCoeff();
    const Eigen::ArrayXXd exponentials = (row - largest).exp();
    const double total = exponentials.sum();
    const double loss = weight * (std::log(total) + largest - row(0, target));
    element(op.token_loss, t) = loss;
    if (op.dlogits.empty()) continue;
    const double factor = weight * element(op.scalars, StepScalar::kInverseTokens);
    matrix(op.dlogits).row(t) = (exponentials / total * factor).matrix();
    matrix(op.dlogits)(t, target) -= factor;
  }
  if (op.summed.empty()) return;
  double sum = 0;
  for (std::int64_t t = 0; t < op.summed.cols; ++t) sum += element(op.summed, t);
  element(op.scalars, StepScalar::kLossSum) += sum;
}

void run(const ops::Argmax& op) {
  for (std::int64_t t = 0; t < op.logits.rows; ++t) {
    Eigen::Index best = 0;
    matrix(op.logits).row(t).maxCoeff(&best);
    op.out.row<std::int32_t>(0)[t] = static_cast<std::int32_t>(best);
  }
}

}  // namespace fp8lab::truth
