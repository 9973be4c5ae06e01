// Definition of attention: forward, backward and with a cache.
//
// D = head_dim; r = 1 / sqrt(D), or AttentionShape::softmax_scale; scale = r * kLog2E. Tiles of
// kv_tile keys and q_tile queries (multiples of 16) start at the sequence start; positions past the
// sequence end count as masked, with zero operands. A key j is visible to query i if first_key(i)
// <= j <= i, all indices within the sequence: first_key(i) = document_start[i], or i - window + 1
// if that is larger and the shape has a window.
//
// chain(c; a, b): accumulator c, then one tensor-core group for each consecutive 16 elements of the
// summed index, ascending. bf16 storage: bf16 operands, specification.md, "The group", with F = 25.
// f32 storage: f32 operands, acc = fma(a, b, acc) ascending within the group, then
// acc = acc + (+0). P and dS are rounded to the storage type before they are operands.
//
// Masked products are zero. A group of zero products changes an accumulator only from -0 to +0,
// which a later group of the same chain does as well. So skipping masked groups, tiles and elements
// never changes a bit if all operands are finite. (Scores of masked pairs are never read, so only
// V, dO, Q and K can cause a NaN through 0 * infinity.)
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// Products of one tensor-core group of the attention chains (specification.md, "The group").
inline constexpr std::int64_t kAttentionGroup = 16;

/// Attention over packed sequences. Query head h reads key-value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t batch = 0;     ///< B
  std::int64_t sequence = 0;  ///< S; for a cache, its capacity for each sequence
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t kv_tile = 64;  ///< keys per online-softmax step; recorded in the run
  std::int64_t q_tile = 64;   ///< queries per accumulation step of the backward pass; recorded
  /// Keys that a query sees at most, its own included (sliding-window attention); 0: no limit.
  std::int64_t window = 0;
  float softmax_scale = 0.0f;  ///< factor of scores; 0: 1 / sqrt(head_dim)

  /// Returns the first key that query `i` sees of a document that starts at `start`.
  FP8LAB_HD std::int64_t first_key(std::int64_t start, std::int64_t i) const {
    return window > 0 && i - window + 1 > start ? i - window + 1 : start;
  }
  /// Number of (query, visible key) pairs, for documents as long as sequences.
  double visible_pairs() const {
    const std::int64_t w = window > 0 && window < sequence ? window : sequence;
    return static_cast<double>(batch * w) *
           (static_cast<double>(sequence - w) + 0.5 * static_cast<double>(w + 1));
  }
  /// Multiply-adds of one product over `pairs`, for all heads.
  double work(double pairs) const { return pairs * static_cast<double>(heads * head_dim); }
};

/// The factors of scores.
struct AttentionFactors {
  float r = 0.0f;      ///< of gradients
  float scale = 0.0f;  ///< r * log2(e), of distances to the largest score
};
AttentionFactors attention_factors(const AttentionShape& shape);

class Checks;
/// Throws Error for an impossible shape.
void check_attention_shape(const Checks& checks, const AttentionShape& shape);

namespace ops {

/// Causal attention within documents, and within the window if the shape has one. q, out (T,
/// heads*D); k, v (T, kv_heads*D); lse (heads, T) f32, base-2 log-sum-exp; document_start (1, T)
/// i32: index within its sequence of the first token of the token's document.
///
/// Per query i and head: m = -inf, l = 0, O = 0. For each kv tile, ascending, with w(d) = 2^-d as
/// numerics::attention_weight, or as wide_attention_weight for f32 operands:
///   s_j = chain(+0; q_i, k_j over D) for visible j;
///   m' = max(m, max_j(s_j) * scale), NaN ignored;
///   alpha = (m == -inf) ? 0 : w(m' - m);
///   p_j = w(fma(-s_j, scale, m')) for visible j, with 0 for m' = -inf; else 0;
///   l = chain(l * alpha; p_j, 1 over the tile's keys): the weights as they are multiplied;
///   O_d = chain(O_d * alpha; p_j, v_jd over the tile's keys);  m = m'.
/// A tile without a visible key changes nothing. out = O * (1 / l);  lse = m + log2(l).
/// q, k and v have one type, which is the operand type; out is bf16 or f32.
struct AttentionForward {
  static constexpr std::string_view kName = "attention_forward";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  TensorView q, k, v, document_start, out, lse;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("q", q));
    visit(reads("k", k));
    visit(reads("v", v));
    visit(reads("document start", document_start));
    visit(writes("out", out));
    visit(writes("lse", lse));
  }
  void check() const;
  /// Multiply-adds of one product of all visible pairs.
  double work() const { return shape.work(shape.visible_pairs()); }
};

/// delta_i = tree_sum_d(dout_id * out_id). For a visible pair:
///   s = chain(+0; q_i, k_j);  p = w(fma(-s, scale, lse_i));  dP = chain(+0; dout_i, v_j over D);
///   dS = p * (dP - delta_i), with p before rounding. Masked pairs: p = 0, dS = 0.
/// dV_jd = chain(+0; p_ij, dout_id) and dK_jd = chain(+0; dS_ij, q_id) * r. Each is one chain over
/// the query heads of the group ascending and, within a head, the queries i ascending from the
/// sequence start; every head starts a new group (q_tile changes no bit).
/// dQ_id = chain(+0; dS_ij, k_jd over the keys ascending) * r.
struct AttentionBackward {
  static constexpr std::string_view kName = "attention_backward";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  TensorView q, k, v, document_start, out, lse;  ///< those of the forward pass
  TensorView dout, dq, dk, dv;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("q", q));
    visit(reads("k", k));
    visit(reads("v", v));
    visit(reads("document start", document_start));
    visit(reads("out", out));
    visit(reads("lse", lse));
    visit(reads("dout", dout));
    visit(writes("dq", dq));
    visit(writes("dk", dk));
    visit(writes("dv", dv));
  }
  void check() const;
  /// As in the forward pass.
  double work() const { return shape.work(shape.visible_pairs()); }
};

/// Attention of N new tokens of any number of sequences, whose earlier keys and values are in a
/// cache: first appends k and v (N, kv_heads*D) to the cache, then attends. The new tokens of
/// sequence b are the rows [query_start[b], query_start[b + 1]) of q, k, v and out. They follow the
/// first cached[b] tokens of the S tokens that k_cache and v_cache (B * S, kv_heads*D, q's type)
/// hold for the sequence. query_start (1, B + 1), cached (1, B) i32.
///
/// k_cache[b * S + cached[b] + i] and v_cache[..] = rows i of sequence b's new keys and values, as
/// bits. Then runs the forward pass above for its queries, at positions cached[b] + i, with tiles
/// that start at the sequence's first cached token and document_start 0; a window counts cached
/// tokens. A row of out (N, heads*D)
/// has the bits of AttentionForward over the whole sequence as one document that starts it, if all
/// operands are finite. Other rows of the caches are neither read nor written. Throws Error if the
/// new tokens are not counted from 0 to N, or exceed the cache.
struct AttentionCached {
  static constexpr std::string_view kName = "attention_cached";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  TensorView q, k, v, query_start, cached, k_cache, v_cache, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("q", q));
    visit(reads("k", k));
    visit(reads("v", v));
    visit(reads("query start", query_start));
    visit(reads("cached", cached));
    visit(updates("k_cache", k_cache));
    visit(updates("v_cache", v_cache));
    visit(writes("out", out));
  }
  void check() const;
  /// As above, for new tokens that see a whole cache.
  double work() const {
    const bool limited = shape.window > 0 && shape.window < shape.sequence;
    return shape.work(static_cast<double>(q.rows * (limited ? shape.window : shape.sequence)));
  }
};

}  // namespace ops
}  // namespace fp8lab
