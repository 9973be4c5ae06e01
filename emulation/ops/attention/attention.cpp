#include "emulation/ops/attention/attention.hpp"

#include <string>

#include "emulation/numerics/exact_math.hpp"
#include "emulation/ops/checks.hpp"

namespace fp8lab {

AttentionFactors attention_factors(const AttentionShape& shape) {
  const float r = shape.softmax_scale > 0.0f
                      ? shape.softmax_scale
                      : 1.0f / __builtin_sqrtf(static_cast<float>(shape.head_dim));
  return {r, r * numerics::kLog2E};
}

void check_attention_shape(const Checks& checks, const AttentionShape& shape) {
  checks.require(shape.batch >= 0 && shape.sequence > 0 && shape.heads > 0 && shape.kv_heads > 0 &&
                     shape.head_dim > 0 && shape.heads % shape.kv_heads == 0,
                 "batch " + std::to_string(shape.batch) + ", sequence " +
                     std::to_string(shape.sequence) + ", " + std::to_string(shape.heads) +
                     " heads over " + std::to_string(shape.kv_heads) + " kv heads of " +
                     std::to_string(shape.head_dim) +
                     "; all must be positive and heads a multiple of kv heads");
  checks.require(shape.kv_tile > 0 && shape.kv_tile % kAttentionGroup == 0 && shape.q_tile > 0 &&
                     shape.q_tile % kAttentionGroup == 0,
                 "kv_tile " + std::to_string(shape.kv_tile) + " and q_tile " +
                     std::to_string(shape.q_tile) + " must be positive multiples of 16");
  checks.require(shape.window >= 0, "window " + std::to_string(shape.window) + " is negative");
  checks.require(shape.softmax_scale >= 0.0f && shape.softmax_scale < 1e30f,
                 "softmax_scale " + std::to_string(shape.softmax_scale) + " is not in [0, 1e30)");
}

}  // namespace fp8lab

namespace fp8lab::ops {
namespace {

/// Checks that the forward pass and the gradient share.
void check_forward(const Checks& checks, const AttentionShape& shape, const TensorView& q,
                   const TensorView& k, const TensorView& v, const TensorView& document_start,
                   const TensorView& out, const TensorView& lse) {
  check_attention_shape(checks, shape);
  const std::int64_t tokens = shape.batch * shape.sequence;
  checks.activation("q", q, tokens, shape.heads * shape.head_dim);
  checks.tensor("k", k, tokens, shape.kv_heads * shape.head_dim, {q.dtype});
  checks.tensor("v", v, tokens, shape.kv_heads * shape.head_dim, {q.dtype});
  checks.activation("out", out, tokens, shape.heads * shape.head_dim);
  checks.tensor("lse", lse, shape.heads, tokens, {DType::f32});
  checks.vector("document_start", document_start, tokens, {DType::i32});
}

}  // namespace

void AttentionForward::check() const {
  check_forward(Checks("attention_forward"), shape, q, k, v, document_start, out, lse);
}

void AttentionBackward::check() const {
  const Checks checks("attention_backward");
  check_forward(checks, shape, q, k, v, document_start, out, lse);
  checks.tensor("dout", dout, q.rows, q.cols, {q.dtype});
  checks.activation("dq", dq, q.rows, q.cols);
  checks.activation("dk", dk, k.rows, k.cols);
  checks.activation("dv", dv, v.rows, v.cols);
  checks.require(dq.data != q.data && dk.data != k.data && dv.data != v.data,
                 "the gradients must not overwrite q, k or v");
}

void AttentionCached::check() const {
  const Checks checks("attention_cached");
  check_attention_shape(checks, shape);
  const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
  checks.activation("q", q, q.rows, shape.heads * shape.head_dim);
  checks.tensor("k", k, q.rows, kv_cols, {q.dtype});
  checks.tensor("v", v, q.rows, kv_cols, {q.dtype});
  checks.tensor("k_cache", k_cache, shape.batch * shape.sequence, kv_cols, {q.dtype});
  checks.tensor("v_cache", v_cache, shape.batch * shape.sequence, kv_cols, {q.dtype});
  checks.vector("query_start", query_start, shape.batch + 1, {DType::i32});
  checks.vector("cached", cached, shape.batch, {DType::i32});
  checks.activation("out", out, q.rows, shape.heads * shape.head_dim);
}

}  // namespace fp8lab::ops
