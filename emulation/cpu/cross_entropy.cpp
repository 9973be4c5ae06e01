#include <algorithm>
#include <string>
#include <vector>

#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/operation_checks.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

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

void cross_entropy(const TensorView& logits, const TensorView& targets, const TensorView& weights,
                   const TensorView& scalars, const TensorView& token_loss,
                   const TensorView& dlogits) {
  check_cross_entropy(logits, targets, weights, scalars, token_loss, dlogits);
  const std::int64_t tokens = logits.rows;
  const std::int64_t vocabulary = logits.cols;
  const std::int32_t* target = targets.row<std::int32_t>(0);
  const float* weight = weights.row<float>(0);
  float* loss = token_loss.row<float>(0);
  check_targets(target, weight, tokens, vocabulary);
  const PointwiseKernels& kernels = pointwise_kernels();
  const float inverse_tokens = scalars.row<float>(0)[StepScalar::kInverseTokens];
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(2 * vocabulary));
    float* row = scratch.data() + vocabulary;
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (weight[t] == 0.0f) {
        loss[t] = 0.0f;
        std::fill(row, row + vocabulary, 0.0f);
      } else {
        const float* z = read_row(kernels, logits, t, scratch.data());
        float sum = 0.0f;
        loss[t] = kernels.token_loss(z, vocabulary, target[t], weight[t], row, &sum);
        kernels.canonical(loss + t, 1, loss + t);
        if (!dlogits.empty()) {
          kernels.token_gradient(row, vocabulary, target[t], sum, weight[t] * inverse_tokens);
        }
      }
      if (!dlogits.empty()) write_row(kernels, row, vocabulary, dlogits, t);
    }
  }
  float* loss_sum = scalars.row<float>(0) + StepScalar::kLossSum;
  const float total = *loss_sum + kernels.sum(loss, tokens);
  kernels.canonical(&total, 1, loss_sum);
}

void argmax(const TensorView& logits, const TensorView& out) {
  check_argmax(logits, out);
  const PointwiseKernels& kernels = pointwise_kernels();
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(logits.cols));
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < logits.rows; ++t) {
      const float* z = read_row(kernels, logits, t, scratch.data());
      out.row<std::int32_t>(0)[t] = static_cast<std::int32_t>(kernels.argmax(z, logits.cols));
    }
  }
}

}  // namespace fp8lab::cpu
