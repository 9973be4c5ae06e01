#include <algorithm>
#include <string>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/ops/checks.hpp"

namespace fp8lab::cpu {
namespace {

void check_targets(const std::int32_t* target, const float* weight, std::int64_t tokens,
                   std::int64_t vocabulary) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (weight[t] != 0.0f && (target[t] < 0 || target[t] >= vocabulary)) {
      Checks("cross_entropy")
          .fail("target " + std::to_string(target[t]) + " of token " + std::to_string(t) +
                " is outside the vocabulary of " + std::to_string(vocabulary));
    }
  }
}

}  // namespace

void run(const ops::CrossEntropy& op) {
  op.check();
  const std::int64_t tokens = op.logits.rows;
  const std::int64_t vocabulary = op.logits.cols;
  const std::int32_t* target = op.targets.row<std::int32_t>(0);
  const float* weight = op.weights.row<float>(0);
  float* loss = op.token_loss.row<float>(0);
  check_targets(target, weight, tokens, vocabulary);
  const PointwiseKernels& kernels = pointwise_kernels();
  const float inverse_tokens = op.scalars.row<float>(0)[StepScalar::kInverseTokens];
  for_each_row(tokens, 2 * vocabulary, [&](std::int64_t t, float* scratch) {
    float* row = scratch + vocabulary;
    if (weight[t] == 0.0f) {
      loss[t] = 0.0f;
      std::fill(row, row + vocabulary, 0.0f);
    } else {
      const float* z = read_row(kernels, op.logits, t, scratch);
      float sum = 0.0f;
      loss[t] = kernels.token_loss(z, vocabulary, target[t], weight[t], row, &sum);
      kernels.canonical(loss + t, 1, loss + t);
      if (!op.dlogits.empty()) {
        kernels.token_gradient(row, vocabulary, target[t], sum, weight[t] * inverse_tokens);
      }
    }
    if (!op.dlogits.empty()) write_row(kernels, row, vocabulary, op.dlogits, t);
  });
  if (op.summed.empty()) return;
  float* loss_sum = op.scalars.row<float>(0) + StepScalar::kLossSum;
  const float total = *loss_sum + kernels.sum(op.summed.row<float>(0), op.summed.cols);
  kernels.canonical(&total, 1, loss_sum);
}

void run(const ops::Argmax& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  for_each_row(op.logits.rows, op.logits.cols, [&](std::int64_t t, float* scratch) {
    const float* z = read_row(kernels, op.logits, t, scratch);
    op.out.row<std::int32_t>(0)[t] = static_cast<std::int32_t>(kernels.argmax(z, op.logits.cols));
  });
}

}  // namespace fp8lab::cpu
