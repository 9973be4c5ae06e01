// Definition of attention on quantized operands: forward, backward and with a cache. It continues
// attention.hpp, whose terms it uses: D, r, scale, tiles, visible keys, w, tree_sum.
//
// q, k, v and dout are operands (T, heads * D): codes with decode scales, or values without a cast.
// x8 are the values of the codes, or the values themselves; sx(i) is the scale of row i in the
// columns of the head, 1 without a scale. P and dS are quantized inside, by the specs `p` and `ds`.
// Codes have at most 8 bits and are exact in bf16.
//
// chain(c; a, b) is that of attention.hpp, in groups of 16, on the values of both operands in the
// type `values`. If both operands are codes of e4m3fn or e5m2 it is instead the chain of
// sm90_wgmma_fp8, in groups of 32. Groups start where the tile starts; a short last group is padded
// with zeros.
//
// add(c; a, b; s) sums over one tile. If an operand has codes, it is promoted:
// fma(chain(+0; a, b), s, c). Otherwise it is chain(c; a, b), and s is 1.
//
// Scales are constant over what a chain sums. So a tile of scales spans whole heads, and one of v
// whole tiles of keys. In the backward pass one of k spans whole tiles of keys, and one of q or
// dout whole tiles of queries. Every product reads the same codes, along D and along the tokens.
//
// Masked products are zero: tiles and groups without a visible pair change no bit, as in
// attention.hpp. A Hadamard transform of q and k along D, the same for both, cancels in q k^T; dq
// and dk are then in its space (ops::RotateBack).
#pragma once

#include <string>

#include "emulation/ops/attention/attention.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// Products of one group of the FP8 chains of attention.
inline constexpr std::int64_t kFp8AttentionGroup = 32;

/// True for codes that the FP8 tensor core multiplies: e4m3fn and e5m2.
bool is_fp8_operand(const QuantSpec& spec);

/// Returns the scale of row `row` of an operand in the columns of head `head`; 1 without a scale.
/// Precondition: the scales are in host memory.
float attention_scale(const QuantizedOperand& operand, std::int64_t row, std::int64_t head,
                      std::int64_t head_dim);

/// True if the scale of `spec` is the same for all tokens of each tile of `width` tokens, for
/// sequences of `sequence` tokens in consecutive rows.
bool has_one_scale_per_tile(const QuantSpec& spec, std::int64_t sequence, std::int64_t width);

/// Returns why attention cannot read operands by these quantizers; empty if it can. `spec` is
/// refused for formats above 8 bits other than that of `values`, codebooks, transforms that do not
/// cancel in q k^T, and tiles that divide a head.
Support supports_attention_operand(const QuantSpec& spec, std::int64_t head_dim, DType values);
/// The same of P, whose scale is static, or of dS, whose scale is static, delayed, or that of the
/// tile of queries and keys (ScaleSource::current).
Support supports_attention_weights(const QuantSpec& spec, DType values, bool is_gradient);

namespace ops {

/// Causal attention of quantized operands; shapes and types as in AttentionForward. out bf16 or
/// f32.
///
/// Per query i and head, m = -inf, l = 0, O = 0. For each kv tile J, ascending:
///   c_j = chain(+0; q8_i, k8_j over D) for visible j;
///   if k has one scale in each kv tile: s_j = c_j, f = RN(RN(sq(i) * sk(J)) * scale);
///   else: s_j = RN(c_j * sk(j)), f = RN(sq(i) * scale);
///   m' = max(m, max_j(s_j) * f), NaN ignored;  alpha = (m == -inf) ? 0 : w(m' - m);
///   p_j = w(fma(-s_j, f, m')) for visible j, with 0 for m' = -inf; else 0;
///   P8_j = code of RN(p_j * RN(1 / sp)) by `p`, or p_j rounded to `values`;
///   l = add(RN(l * alpha); P8_j, 1 over the tile's keys; 1), with the chain of P8 and v8;
///   O_d = add(RN(O_d * alpha); P8_j, v8_jd over the tile's keys; sv(J));  m = m'.
/// out = O * (1 / l);  lse = m + log2(RN(l * sp)). sp is the static scale of `p`, else 1: P8 sums
/// to l in the same units as in O, so that sp cancels in out.
struct QuantizedAttentionForward {
  static constexpr std::string_view kName = "quantized_attention_forward";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  DType values = DType::bf16;  ///< of operands without codes: bf16 or f32
  const QuantizedOperand &q, &k, &v;
  const QuantSpec& p;
  TensorView document_start, out, lse;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const QuantizedOperand* operand : {&q, &k, &v}) {
      visit(OperationTensor{"codes", Access::read, operand->codes, operand});
      visit(OperationTensor{"scales", Access::read, operand->scales, operand});
    }
    visit(reads("document start", document_start));
    visit(writes("out", out));
    visit(writes("lse", lse));
  }
  /// Returns why the quantizers cannot be computed in this shape, whatever the tensors.
  Support support() const;
  void check() const;
  /// As AttentionForward.
  double work() const { return shape.work(shape.visible_pairs()); }
};

/// The gradients of QuantizedAttentionForward, with its q, k, v, p, out and lse.
/// delta_i = tree_sum_d(RN(sdo(i) * dout8_id) * out_id): of dout as it is multiplied, so that a row
/// of dS sums to zero but for rounding. For a visible pair of the kv tile J:
///   p = w(fma(-c_ij, f, lse_i)) with c and f as in the forward pass (k has one scale per tile);
///   g = RN(sdo(i) * sv(J));  dS = RN(p * fma(chain(+0; dout8_i, v8_j over D), g, -delta_i));
///   P8 by `p` as in the forward pass; dS8 = code of scaled_value(dS) by `ds`.
/// Masked pairs: p = 0, dS = 0. The scale sds of a tile of queries I and keys J is, by `ds`, static
/// (dS is multiplied by RN(1 / sds)), delayed (by the factor in DelayedState, 1 before the first
/// step), or current: numerics::tile_scale of the amax over the visible pairs of the tile. A
/// delayed scale raises ds_state[kAmax] to the amax of all visible dS, as bits; NaN is canonical.
///
/// From +0, over the query heads of the group ascending and, within a head, the q tiles I
/// ascending:
///   dV_jd = add(dV_jd; P8_ij, dout8_id over I; RN(sp * sdo(I)));
///   dK_jd = add(dK_jd; dS8_ij, q8_id over I; RN(sds(I, J) * sq(I))), at the end times r.
/// From +0, over the kv tiles J ascending:
///   dQ_id = add(dQ_id; dS8_ij, k8_jd over J; RN(sds(I, J) * sk(J))), at the end times r.
struct QuantizedAttentionBackward {
  static constexpr std::string_view kName = "quantized_attention_backward";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  DType values = DType::bf16;  ///< as in the forward pass
  const QuantizedOperand &q, &k, &v, &dout;
  const QuantSpec &p, &ds;
  TensorView ds_state{};  ///< DelayedState of dS; empty unless its scale is delayed
  TensorView document_start, out, lse;
  TensorView dq, dk, dv;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const QuantizedOperand* operand : {&q, &k, &v, &dout}) {
      visit(OperationTensor{"codes", Access::read, operand->codes, operand});
      visit(OperationTensor{"scales", Access::read, operand->scales, operand});
    }
    visit(reads("document start", document_start));
    visit(reads("out", out));
    visit(reads("lse", lse));
    visit(writes("dq", dq));
    visit(writes("dk", dk));
    visit(writes("dv", dv));
    visit(updates("delayed state", ds_state));
  }
  /// Returns why the quantizers cannot be computed in this shape, whatever the tensors.
  Support support() const;
  void check() const;
  /// As AttentionBackward.
  double work() const { return shape.work(shape.visible_pairs()); }
};

/// AttentionCached on quantized operands: the caches hold codes. k_cache and v_cache (B * S,
/// kv_heads * D) have the type of the codes of k and v, or `values`. If k has a scale for each
/// token, k_scale_cache (B * S, kv_heads) f32 holds those of the cached keys; otherwise it is
/// empty, and the scale of k, like that of v always, is the one scale of the operand.
///
/// Appends the rows of k.codes, v.codes and k.scales to the caches, as bits; then runs the forward
/// pass above as AttentionCached does. A row of out has the bits of QuantizedAttentionForward over
/// the whole sequence if all scales are those of the tensor and equal in both passes, or those of
/// tokens, and all operands are finite.
struct QuantizedAttentionCached {
  static constexpr std::string_view kName = "quantized_attention_cached";
  static constexpr WorkClass kClass = WorkClass::attention;

  AttentionShape shape;
  DType values = DType::bf16;         ///< of operands without codes: bf16 or f32
  const QuantizedOperand &q, &k, &v;  ///< of the new tokens
  const QuantSpec& p;
  TensorView query_start, cached, k_cache, v_cache;
  TensorView k_scale_cache{};
  TensorView out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const QuantizedOperand* operand : {&q, &k, &v}) {
      visit(OperationTensor{"codes", Access::read, operand->codes, operand});
      visit(OperationTensor{"scales", Access::read, operand->scales, operand});
    }
    visit(reads("query start", query_start));
    visit(reads("cached", cached));
    visit(updates("k_cache", k_cache));
    visit(updates("v_cache", v_cache));
    visit(updates("scales of k_cache", k_scale_cache));
    visit(writes("out", out));
  }
  /// Returns why the quantizers cannot be computed in this shape, whatever the tensors.
  Support support() const;
  void check() const;
  /// As AttentionCached.
  double work() const {
    const bool limited = shape.window > 0 && shape.window < shape.sequence;
    return shape.work(static_cast<double>(q.rows * (limited ? shape.window : shape.sequence)));
  }
};

/// Returns why a cache cannot hold k or v by `spec`: its scale would depend on later tokens, or a
/// scale of v would not be constant over a tile of keys.
Support supports_cached_operand(const QuantSpec& spec, bool is_v);

}  // namespace ops
}  // namespace fp8lab
