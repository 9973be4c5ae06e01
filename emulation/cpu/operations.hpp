// The model and optimizer operations of the CPU backend: the specification of the `exact` profile.
//
// Every operation below states the order of its arithmetic; the CUDA kernels mirror it. Operators
// written as + - * / sqrt are IEEE FP32 operations, each rounded to nearest even with subnormals
// kept; parentheses give the order and nothing is contracted. exp2, log2, sigmoid and silu are
// those of numerics/exact_math.hpp, tree_sum that of numerics/tree_sum.hpp. Inputs are widened
// exactly, results are rounded once on the store: to bf16 by to_bf16, to f32 with a NaN replaced by
// the canonical one. Parameters and shapes are those of the Backend methods of the same name
// (api/backend.hpp); unless said otherwise a tensor is bf16 or f32, and views may be strided.
// All functions throw Error naming the operation, the tensor and its shape when something does not
// fit. Work is spread with OpenMP over independent outputs: the bits do not depend on the number of
// threads, nor on the SIMD target.
#pragma once

#include <cstdint>

#include "emulation/api/backend.hpp"
#include "emulation/api/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"

namespace fp8lab::cpu {

/// Rows that a column sum adds sequentially before it starts a new partial sum.
inline constexpr std::int64_t kColumnSumBlock = 128;
/// Products of one tensor-core group of the attention chains (numerics.md section 3).
inline constexpr std::int64_t kAttentionGroup = 16;

// --- embedding ----------------------------------------------------------------------------------

/// out[t] = table[tokens[t]], rounded to out's type. Error for a token outside the table.
void embedding_forward(const TensorView& tokens, const TensorView& table, const TensorView& out);

/// For t ascending: dtable[tokens[t]][c] = dtable[tokens[t]][c] + dout[t][c].
void embedding_backward(const TensorView& tokens, const TensorView& dout, const TensorView& dtable);

// --- normalisation ------------------------------------------------------------------------------

/// Heads of `cols` columns side by side in the rows of a matrix, each normalised by itself and
/// counted along the rows.
struct NormHeads {
  std::int64_t count, cols;

  static NormHeads of(const TensorView& x, const TensorView& weight) {
    return {weight.cols > 0 ? x.cols / weight.cols : 1, weight.cols};
  }
  /// Row of the matrix and first column of head `index`.
  FP8LAB_HD std::int64_t row(std::int64_t index) const {
    return count == 1 ? index : index / count;
  }
  FP8LAB_HD std::int64_t first(std::int64_t index) const {
    return count == 1 ? 0 : index % count * cols;
  }
};

/// Of the C columns of each head: mean = tree_sum_c(x * x) / C;  rstd = 1 / sqrt(mean + epsilon);
/// y = (x * rstd) * weight. The rstd in y is the f32 value that is stored.
void rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                     const TensorView& y, const TensorView& rstd);

/// Of the same columns: s = tree_sum_c((dy * weight) * x);  k = ((s * rstd) * rstd) / C;
/// dx = rstd * ((dy * weight) - (x * k));  dweight = dweight + column_sum(dy * (x * rstd)), whose
/// rows are the heads.
void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                      const TensorView& rstd, const TensorView& dx, const TensorView& dweight);

// --- pointwise ----------------------------------------------------------------------------------

/// sum = a + b.
void add(const TensorView& a, const TensorView& b, const TensorView& sum);

/// out = silu(gate) * up.
void swiglu_forward(const TensorView& gate_up, const TensorView& out);

/// sig = sigmoid(gate);  dup = dout * silu(gate);
/// dgate = (dout * up) * (sig * (1 + gate * (1 - sig))).
void swiglu_backward(const TensorView& gate_up, const TensorView& dout, const TensorView& dgate_up);

/// destination = source for bf16, f32 and f64 in any combination, each element rounded once to
/// nearest even; equal types copy bits, also u8 and i32.
void copy(const TensorView& source, const TensorView& destination);

// --- column sums --------------------------------------------------------------------------------

/// dbias = dbias + column_sum(dy), where column_sum adds blocks of kColumnSumBlock consecutive
/// rows, each sequentially ascending from +0, and then the block sums sequentially ascending from
/// +0.
void bias_backward(const TensorView& dy, const TensorView& dbias);

// --- rotary embedding ---------------------------------------------------------------------------

/// With a = x[i], b = x[i + D/2], c = cosine[position][i], s = sine[position][i] (inverse: -s):
/// x[i] = (a * c) - (b * s);  x[i + D/2] = (b * c) + (a * s).
void rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
          const TensorView& sine, std::int64_t head_dim, bool inverse);

// --- attention ----------------------------------------------------------------------------------
//
// The project's one definition of attention. D = head_dim; r = 1 / sqrt(D); scale = r * kLog2E.
// Tiles of kv_tile keys and q_tile queries (multiples of 16) start at the sequence start; positions
// past the sequence end count as masked with zero operands. A key j is visible to query i when
// document_start[i] <= j <= i, all indices within the sequence.
//
// chain(c; a, b): accumulator c, then for each consecutive 16 elements of the summed index
// ascending one tensor-core group. bf16 storage: operands bf16, numerics.md section 3 with F = 25.
// f32 storage: operands f32, acc = fma(a, b, acc) ascending within the group, then acc = acc +
// (+0). P and dS are rounded to the storage type before they are operands.
//
// Masked products are zero, and a group of zero products leaves every accumulator unchanged but for
// turning -0 into +0, which a later group of the same chain does as well. So skipping groups, tiles
// and elements that are masked never changes a bit, as long as all operands are finite. (Scores of
// masked pairs are never read, so only V, dO, Q and K can bring in a NaN through 0 * infinity.)

/// Forward. Per query i and head: m = -inf, l = 0, O = 0. For each kv tile, ascending:
///   s_j = chain(+0; q_i, k_j over D) * scale for visible j;  m' = max(m, s_j...), NaN ignored;
///   alpha = (m == -inf) ? 0 : exp2(m - m');  p_j = exp2(s_j - m') for visible j, else 0;
///   l = (l * alpha) + tree_sum_j(p_j) over kv_tile elements, before rounding;
///   O_d = chain(O_d * alpha; p_j, v_jd over the tile's keys);  m = m'.
/// A tile without a visible key changes nothing. out = O * (1 / l);  lse = m + log2(l).
/// q, k and v are of one type, which is the operand type; out is bf16 or f32.
void attention_forward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& document_start, const TensorView& out,
                       const TensorView& lse);

/// New tokens against a cache: k_cache[b * S + cached[b] + i] and v_cache[..] = rows i of sequence
/// b's new keys and values, bits copied; then the forward pass above for its queries, at positions
/// cached[b] + i, with tiles that start at the sequence's first cached token and document_start 0.
/// Other rows of the caches are neither read nor written. Error for new tokens that are not
/// counted from 0 to N, or that go beyond the cache.
void attention_cached(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                      const TensorView& v, const TensorView& query_start, const TensorView& cached,
                      const TensorView& k_cache, const TensorView& v_cache, const TensorView& out);

/// Backward. delta_i = tree_sum_d(dout_id * out_id). For a visible pair:
///   s = chain(+0; q_i, k_j) * scale;  p = exp2(s - lse_i);  dP = chain(+0; dout_i, v_j over D);
///   dS = p * (dP - delta_i), with p before rounding. Masked pairs: p = 0, dS = 0.
/// dV_jd = chain(+0; p_ij, dout_id) and dK_jd = chain(+0; dS_ij, q_id) * r, each one chain over the
/// query heads of the group ascending and, within a head, the queries i ascending from the sequence
/// start, every head starting a new group (q_tile changes no bit). dQ_id = chain(+0; dS_ij, k_jd
/// over the keys ascending) * r.
void attention_backward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& document_start,
                        const TensorView& out, const TensorView& lse, const TensorView& dout,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv);

// --- loss ---------------------------------------------------------------------------------------

/// Per token of weight w != 0 with target g: m = max(z), NaN ignored;  e = exp2((z - m) * kLog2E);
/// sum = tree_sum(e);  loss = ((log2(sum) + ((m - z_g) * kLog2E)) * kLn2) * w;
/// dlogits = (e * (1 / sum) - onehot) * (w * scalars[kInverseTokens]).
/// Tokens of weight 0: loss and dlogits +0, the target is not read.
/// scalars[kLossSum] = scalars[kLossSum] + tree_sum(token_loss).
/// Error for a target outside [0, V) with nonzero weight.
void cross_entropy(const TensorView& logits, const TensorView& targets, const TensorView& weights,
                   const TensorView& scalars, const TensorView& token_loss,
                   const TensorView& dlogits);

/// Index of the largest element; a later element replaces an earlier one only when it is greater.
void argmax(const TensorView& logits, const TensorView& out);

// --- optimizer ----------------------------------------------------------------------------------

/// scalars[kGradNormSquared] = scalars[kGradNormSquared] + tree_sum(g * g) over the elements in
/// row-major order. gradient: f32, contiguous.
void accumulate_square_sum(const TensorView& gradient, const TensorView& scalars);

/// norm = sqrt(scalars[kGradNormSquared]);  ratio = clip_norm / (norm + 1e-6);
/// clip = (clip_norm > 0 and ratio < 1) ? ratio : 1 (a NaN norm gives 1: the gradient itself is
/// NaN). beta power = max((power == 0 ? 1 : power) * beta, 2^-126): zero stands for "before step
/// 1", and the lower limit, invisible in 1 - power, keeps it from coming back.
void begin_update(const AdamWSpec& spec, const TensorView& scalars);

/// AdamW. Once per call: decay = 1 - ((lr * weight_decay) * decay_mask);  rate = lr / (1 - power1);
/// root = sqrt(1 - power2). Per element:
///   p = p * decay;  g = gradient * clip;
///   m = round((beta1 * m) + ((1 - beta1) * g));
///   v = round((beta2 * v) + (((1 - beta2) * g) * g));
///   p = p - (rate * (m / ((sqrt(v) / root) + epsilon)));
/// round(.) is to the moment's storage type, and p uses the rounded moments. master = p;
/// working = to_bf16(p) where present. All tensors have the same shape and are contiguous.
void adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
           const AdamWTensors& tensors);

}  // namespace fp8lab::cpu
