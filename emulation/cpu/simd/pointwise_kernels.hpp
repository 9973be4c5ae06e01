// Row kernels of the model and optimizer operations: one table per instruction
// set, all with the same bits.
//
// All arithmetic of these operations happens here, on f32 rows, in the orders that the headers
// of emulation/ops define.
#pragma once

#include <cstdint>

#include "emulation/numerics/dynamic_tanh.hpp"
#include "emulation/numerics/xielu.hpp"

namespace fp8lab::cpu {

/// Per-call constants of the AdamW element update.
struct AdamWFactors {
  float decay;  ///< 1 - lr * weight_decay * mask
  float clip;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float rate;  ///< lr / (1 - beta1^t)
  float root;  ///< sqrt(1 - beta2^t)
  float epsilon;
  bool bf16_first_moment, bf16_second_moment;
};

/// Running state of one query row of the online softmax.
struct SoftmaxState {
  float maximum;
  float alpha;  ///< factor by which the row's earlier sum and output have to be multiplied
};

/// One (query, tile) row of the attention backward pass. Columns outside [first, last) are masked.
struct ScoreGradientRow {
  const float* scores;  ///< chain results q.k
  const float* dprobs;  ///< chain results dout.v
  std::int64_t first, last, tile;
  float scale, lse, delta;
  bool is_wide;              ///< weights as for FP32 operands
  float dprob_scale = 1.0f;  ///< of dprobs, in one rounding with the difference to delta
};

/// Moments of a row: a layer norm subtracts the mean and multiplies by rstd.
struct RowMoments {
  float mean, rstd;
};

/// Pointers to rows of `n` floats unless said otherwise. Inputs and outputs may be the same row.
struct PointwiseKernels {
  void (*widen)(const std::uint16_t* bf16, std::int64_t n, float* out);
  void (*narrow)(const float* values, std::int64_t n, std::uint16_t* bf16);
  /// Copies, and replaces NaN by the canonical NaN.
  void (*canonical)(const float* values, std::int64_t n, float* out);

  void (*add)(const float* a, const float* b, std::int64_t n, float* out);
  /// out = (a * factor_a) + (b * factor_b)
  void (*weighted_sum)(const float* a, float factor_a, const float* b, float factor_b,
                       std::int64_t n, float* out);
  void (*multiply)(const float* a, float factor, std::int64_t n, float* out);
  /// sum = fma(a, factor, sum)
  void (*multiply_add)(const float* a, float factor, std::int64_t n, float* sum);
  void (*swiglu)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*swiglu_gradient)(const float* gate, const float* up, const float* dout, std::int64_t n,
                          float* dgate, float* dup);
  void (*geglu)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*geglu_gradient)(const float* gate, const float* up, const float* dout, std::int64_t n,
                         float* dgate, float* dup);
  void (*gelu)(const float* x, std::int64_t n, float* out);
  void (*gelu_gradient)(const float* x, const float* dout, std::int64_t n, float* dx);
  void (*relu2)(const float* x, std::int64_t n, float* out);
  void (*relu2_gradient)(const float* x, const float* dout, std::int64_t n, float* dx);
  void (*xielu)(const float* x, numerics::XieluFactors factors, std::int64_t n, float* out);
  void (*xielu_gradient)(const float* x, numerics::XieluFactors factors, const float* dout,
                         std::int64_t n, float* dx);
  /// numerics::xielu_terms of every element.
  void (*xielu_terms)(const float* x, const float* dout, std::int64_t n, float* by_p, float* by_n);
  void (*dynamic_tanh)(const float* x, float alpha, std::int64_t n, float* out);
  /// numerics::dynamic_tanh_slopes of every element.
  void (*dynamic_tanh_slopes)(const float* x, float alpha, const float* dout, std::int64_t n,
                              float* by_x, float* by_alpha);
  void (*rotate)(const float* cosine, const float* sine, bool inverse, std::int64_t n, float* lower,
                 float* upper);

  float (*rmsnorm)(const float* x, const float* weight, float epsilon, std::int64_t n, float* y);
  void (*rmsnorm_gradient)(const float* dy, const float* x, const float* weight, float rstd,
                           std::int64_t n, float* dx);
  /// sum += dy * (x * rstd)
  void (*add_normalised)(const float* dy, const float* x, float rstd, std::int64_t n, float* sum);

  RowMoments (*layernorm)(const float* x, const float* weight, const float* bias, float epsilon,
                          std::int64_t n, float* y);
  void (*layernorm_gradient)(const float* dy, const float* x, const float* weight,
                             RowMoments moments, std::int64_t n, float* dx);
  /// sum += dy * ((x - mean) * rstd)
  void (*add_centred)(const float* dy, const float* x, RowMoments moments, std::int64_t n,
                      float* sum);

  float (*sum)(const float* values, std::int64_t n);
  float (*dot)(const float* a, const float* b, std::int64_t n);

  /// Returns the loss of one token. Writes exp2((z - m) * log2e) to
  /// `exponentials` and their sum to `sum`.
  float (*token_loss)(const float* logits, std::int64_t n, std::int64_t target, float weight,
                      float* exponentials, float* sum);
  /// Turns exponentials into dlogits in place.
  void (*token_gradient)(float* exponentials, std::int64_t n, std::int64_t target, float sum,
                         float factor);
  std::int64_t (*argmax)(const float* logits, std::int64_t n);

  /// Processes one kv tile of one row and writes `tile` probabilities. Precondition: [first, last)
  /// is not empty. `is_wide`: of FP32 operands.
  void (*softmax_row)(const float* scores, std::int64_t first, std::int64_t last, std::int64_t tile,
                      float scale, bool is_wide, SoftmaxState* state, float* probabilities);
  /// out = accumulator * (1 / sum); returns lse.
  float (*softmax_end)(float maximum, float sum, const float* accumulator, std::int64_t n,
                       float* out);
  void (*score_gradient)(const ScoreGradientRow* row, float* probabilities, float* dscores);

  /// Computes c (m, n) = chain(c; a, b) with FP32 operands: ascending fma, and +0 added after every
  /// 16. a(i, k) = a[i * a_row + k * a_col]; b (k, n) and c have rows of `ldb` and `ldc` elements.
  void (*ideal_chain)(const float* a, std::int64_t a_row, std::int64_t a_col, const float* b,
                      std::int64_t ldb, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
                      std::int64_t ldc);

  void (*adamw)(const AdamWFactors* factors, std::int64_t n, const float* gradient, float* master,
                float* first_moment, float* second_moment);
};

/// Returns the table of active_target().
const PointwiseKernels& pointwise_kernels();

}  // namespace fp8lab::cpu
