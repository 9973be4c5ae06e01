// The operations of a training step. The model is written once against this interface; the CPU
// emulator, the CUDA kernels and the double-precision truth path implement it.
//
// Contract. Operations are enqueued in call order on one stream. None returns a scalar to the host:
// amax, scales, clip factor, learning rate, step counters and losses live in backend memory.
// Memory is allocated before the first step. An intermediate rounds to its declared storage type
// whether or not an implementation stores it, so fusion never changes a bit. Shapes are (rows,
// cols) row-major; T is the number of tokens of a micro-batch, B sequences of S tokens, T = B * S.
// All arithmetic is FP32, round to nearest even, in the order that emulation/cpu writes down, and
// each result is rounded once to the storage type of its destination (bf16 or f32; the truth path
// computes and stores f64). Operations throw Error for shapes or types that do not fit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "emulation/api/error.hpp"
#include "emulation/api/gemm_spec.hpp"
#include "emulation/api/quant_spec.hpp"
#include "emulation/api/tensor_view.hpp"

namespace fp8lab {

/// Identity of the random bits of one quantization: Philox key (seed, step, tensor, orientation),
/// counter the logical element index in the source tensor.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t tensor = 0;
  std::uint32_t orientation = 0;  ///< 0: first orientation, 1: transposed
  /// Identity of the drawn signs of a transform within seed and step: that of the GEMM, so that its
  /// two operands share them.
  std::uint32_t rotation = 0;
};

/// One GEMM operand in the form the multiplier reads: `rows` vectors of length `k`, K contiguous.
struct QuantizedOperand {
  QuantSpec spec;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  TensorView codes;   ///< (rows, k): u8 codes, or bf16/f32/f64 values when spec is not quantized
  TensorView scales;  ///< (tile_rows, scale_cols) f32 decode scales; empty without a scale
  /// Of the quantization that filled it; from it come the drawn signs of a transform.
  RandomKey key{};
  /// Of a smoothing, by Backend::smoothing_factors: (1, k) f32, the same for both operands.
  TensorView channel_factors{};
  /// B of A B^T. Its elements are multiplied by the factors, those of A divided.
  bool is_right = false;
  /// Of a clamp, written by Backend::quantize: (1, 2) f32, the lower and the upper bound.
  TensorView clamp_bounds{};
};

/// Layout of the f32 vector that holds delayed-scaling state (recipes.md section 0.4). A zeroed
/// vector is the state before the first step: scale 1. Amaxes are compared as bits, so that a NaN
/// or infinity in the tensor survives in kAmax and in the history.
struct DelayedState {
  static constexpr std::int64_t kScale = 0;  ///< decode scale in force; 0 stands for 1
  static constexpr std::int64_t kAmax = 1;   ///< running amax of the present step
  /// Factor applied before the cast, TileScale::multiplier of kScale: RN(Qmax/amax) is not always
  /// RN(1/scale). 0 stands for 1.
  static constexpr std::int64_t kMultiplier = 2;
  static constexpr std::int64_t kHistory = 3;  ///< first of `history_length` amaxes, newest first
  /// AmaxAlgorithm::window: one more value follows the history, the number of steps in it.
  static std::int64_t length(const QuantSpec& spec) {
    return kHistory + spec.history_length + (spec.amax_algorithm == AmaxAlgorithm::window ? 1 : 0);
  }
};

/// Attention over packed sequences. Query head h reads key-value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t batch = 0;     ///< B
  std::int64_t sequence = 0;  ///< S; of a cache, its capacity for each sequence
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t kv_tile = 64;  ///< keys per online-softmax step; recorded in the run
  std::int64_t q_tile = 64;   ///< queries per accumulation step of the backward pass; recorded
};

/// Scalars of the training step, an f32 vector in backend memory.
struct StepScalar {
  static constexpr std::int64_t kLearningRate = 0;
  static constexpr std::int64_t kInverseTokens = 1;  ///< 1 / unmasked tokens of the whole step
  static constexpr std::int64_t kLossSum = 2;        ///< sum of token losses so far, nats
  static constexpr std::int64_t kGradNormSquared = 3;
  static constexpr std::int64_t kGradNorm = 4;
  static constexpr std::int64_t kClipFactor = 5;
  static constexpr std::int64_t kBeta1Power = 6;  ///< beta1^t, updated by begin_update
  static constexpr std::int64_t kBeta2Power = 7;
  static constexpr std::int64_t kCount = 8;
};

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
struct AdamWSpec {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;
  float clip_norm = 1.0f;  ///< 0: no clipping
};

struct AdamWTensors {
  TensorView master;         ///< f32 weights (f64 on the truth path), updated
  TensorView working;        ///< bf16 copy rounded from master, or empty
  TensorView gradient;       ///< f32
  TensorView first_moment;   ///< f32 or bf16
  TensorView second_moment;  ///< f32 or bf16
};

/// Statistics of one logged operand (recipes.md section 8), accumulated in f64 in a fixed order.
struct OperandStatistics {
  static constexpr int kTopChannels = 8;
  double amax, rms, mse, sqnr_db, cosine, bias;
  double underflow_fraction;   ///< nonzero -> zero, of all elements
  double saturation_fraction;  ///< |x| above the largest representable magnitude of its tile
  double nonfinite_count;
  double kurtosis;               ///< uncentred: mean(x^4) / mean(x^2)^2
  double crest_factor;           ///< amax / rms
  double channel_outlier_ratio;  ///< largest over median channel amax (channels: source columns)
  double scale_min, scale_max, scale_log2_spread;  ///< all-zero tiles excluded
  double zero_tile_fraction;
  double top_channel[kTopChannels];  ///< source columns by descending amax
  double top_channel_amax[kTopChannels];
  double exponent_histogram[64];  ///< fraction of nonzero |x| by exponent -40..23, ends clamp
  /// Identity of codes and scales, defined by numerics::hash_term (numerics/operand_hash.hpp); the
  /// same on every backend.
  std::uint64_t hash;
};

/// Why an operation is refused; empty when it is supported.
struct Support {
  std::string reason;
  explicit operator bool() const { return reason.empty(); }
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- identity -------------------------------------------------------------------------------
  virtual std::string name() const = 0;    ///< "cpu", "cuda", "truth"
  virtual std::string device() const = 0;  ///< one line for the run file
  /// Storage type for activations and weights of a recipe that asks for `wanted` (truth: f64).
  virtual DType storage(DType wanted) const = 0;
  virtual Support supports(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) const = 0;
  virtual Support supports(const QuantSpec& spec) const = 0;

  // --- memory ---------------------------------------------------------------------------------
  /// Zeroed, 64-byte aligned, contiguous; lives until released or as long as the backend.
  virtual TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) = 0;
  /// Frees everything allocated after memory_mark() returned `mark`: the buffers of one stage.
  virtual std::size_t memory_mark() const = 0;
  virtual void release_to(std::size_t mark) = 0;
  /// Bytes of what is allocated now, each allocation rounded up to the backend's alignment.
  virtual std::size_t memory_bytes() const = 0;
  /// Host to backend; `source` holds view.size() elements of the view's type.
  virtual void upload(const TensorView& destination, const void* source) = 0;
  /// Backend to host, after everything enqueued before it.
  virtual void download(void* destination, const TensorView& source) = 0;
  virtual void fill_zero(const TensorView& view) = 0;
  /// destination = source, each element rounded to the destination's type.
  virtual void copy(const TensorView& source, const TensorView& destination) = 0;
  virtual void synchronize() = 0;

  // --- quantization and GEMM --------------------------------------------------------------------
  /// Quantizes `source` (R, C), or its transpose, into `operand` by operand.spec. `state` is the
  /// DelayedState of the tensor, else empty; a delayed quantization raises state[kAmax]. With a
  /// transform the codes and scales are those of the transformed tensor, and operand.key = key.
  virtual void quantize(const TensorView& source, bool transpose, const RandomKey& key,
                        const TensorView& state, QuantizedOperand& operand) = 0;
  /// Quantizes `source` into `first` and its transpose into `second`: quantize with key.orientation
  /// 0 and 1, which a backend may do in one reading. Both have the key's rotation.
  virtual void quantize_both(const TensorView& source, const RandomKey& key,
                             const TensorView& state, QuantizedOperand& first,
                             QuantizedOperand& second) {
    RandomKey oriented = key;
    oriented.orientation = 0;
    quantize(source, false, oriented, state, first);
    oriented.orientation = 1;
    quantize(source, true, oriented, state, second);
  }
  /// factors (1, K) f32 = numerics::smoothing_factor of the amaxes of A and B at each position
  /// along K, where A is `a`, or its transpose with `transpose_a`, and B likewise. A factor that is
  /// not 0 stays as it is if the transform is static. For backends that support smoothing.
  virtual void smoothing_factors(const Transform& transform, const TensorView& /*a*/,
                                 bool /*transpose_a*/, const TensorView& /*b*/,
                                 bool /*transpose_b*/, const TensorView& /*factors*/) {
    throw Error("backend " + name() + " has no transform " + transform_name(transform));
  }
  /// destination (rows, k), or (k, rows) when `transpose`, = scale * decode(code), with the
  /// operand's transform undone, rounded to the destination's type. What a clamp took away stays
  /// away.
  virtual void dequantize(const QuantizedOperand& operand, bool transpose,
                          const TensorView& destination) = 0;
  /// Rolls the history, takes a new scale from it and clears state[kAmax]. Once a step.
  virtual void update_delayed_scale(const QuantSpec& spec, const TensorView& state) = 0;
  /// d (a.rows, b.rows) = A B^T with scales, by numerics.md section 6. `bias` (1, b.rows) or empty
  /// is added to every row after scaling, separately rounded. accumulate: d (f32) += ... through
  /// fma(acc, scale, d), beta = 1.
  virtual void gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                    const TensorView& bias, bool accumulate, const TensorView& d) = 0;
  /// d (a.rows, b.rows) += what the compensated clamp of one of the two operands took away, times
  /// the unquantized tensor of the other, after their gemm. A was quantized from `a_source`, or its
  /// transpose with `transpose_a`, and B likewise. With r = numerics::clamp_residual, which is
  /// sparse, s = sum over ascending k of RN(r(A[m, k]) * B[n, k]) where r is not zero (or of A[m,
  /// k]
  /// * r(B[n, k])), each addition from +0 on rounded, and d = RN(d + s), rounded to d's type; rows
  /// of the clamped operand without outliers leave d as it is. For backends that support clamps.
  virtual void compensate(const QuantizedOperand& a, const TensorView& /*a_source*/,
                          bool /*transpose_a*/, const QuantizedOperand& b,
                          const TensorView& /*b_source*/, bool /*transpose_b*/,
                          const TensorView& /*d*/) {
    throw Error("backend " + name() + " has no transform " +
                transform_name(a.spec.transform ? a.spec.transform : b.spec.transform));
  }
  /// Writes an OperandStatistics of how well `operand` represents `source` (or its transpose) into
  /// `record` (u8, 1 x sizeof(OperandStatistics)). Logged steps only. With a transform along K, the
  /// transformed source is compared with the operand's scale * decode(code): errors, ranges and
  /// channels (positions along K) are of what was quantized. Where the transform is orthonormal
  /// (all but smoothing), mse, sqnr_db and rms are also those of the untransformed tensor up to
  /// rounding. With a clamp the source itself is compared with what enters the product: scale *
  /// decode(code), and the residual beside it where the clamp is compensated; saturation_fraction
  /// is that of the codes alone.
  virtual void operand_statistics(const TensorView& source, bool transpose,
                                  const QuantizedOperand& operand, const TensorView& record) = 0;

  // --- model ----------------------------------------------------------------------------------
  /// out (T, C) = table[tokens[t]]; tokens (1, T) i32, table (V, C).
  virtual void embedding_forward(const TensorView& tokens, const TensorView& table,
                                 const TensorView& out) = 0;
  /// dtable (V, C) f32 += rows of dout, ascending t for each vocabulary row.
  virtual void embedding_backward(const TensorView& tokens, const TensorView& dout,
                                  const TensorView& dtable) = 0;
  /// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon) of each C consecutive columns of a
  /// row: x and y (T, H * C), weight (1, C), rstd (1, T * H) with the H of a token side by side.
  /// H = 1 is the norm of rows; H heads of C columns have norms of their own.
  virtual void rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                               const TensorView& y, const TensorView& rstd) = 0;
  /// dy, x, dx (T, H * C); dweight (1, C) f32 accumulates.
  virtual void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                                const TensorView& rstd, const TensorView& dx,
                                const TensorView& dweight) = 0;
  /// sum = round(a + b); any of the three may be the same view.
  virtual void add(const TensorView& a, const TensorView& b, const TensorView& sum) = 0;
  /// dbias (1, N) f32 += column sums of dy (T, N).
  virtual void bias_backward(const TensorView& dy, const TensorView& dbias) = 0;
  /// Rotates `heads` consecutive heads of `head_dim` columns of x (T, heads * head_dim) in place,
  /// pairing element i with i + head_dim / 2 (GPT-NeoX order, as Qwen2 and Llama do). cosine and
  /// sine are (positions, head_dim / 2) f32, positions (1, T) i32. inverse negates the sines: the
  /// transposed map, which is that of the gradient also where a table holds scaled cosines and sines.
  virtual void rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
                    const TensorView& sine, std::int64_t head_dim, bool inverse) = 0;
  /// Causal attention within documents. q, out (T, heads*D); k, v (T, kv_heads*D); lse (heads, T)
  /// f32, base-2 log-sum-exp; document_start (1, T) i32: index within its sequence of the first
  /// token of the token's document. Scores are scaled by 1/sqrt(D).
  virtual void attention_forward(const AttentionShape& shape, const TensorView& q,
                                 const TensorView& k, const TensorView& v,
                                 const TensorView& document_start, const TensorView& out,
                                 const TensorView& lse) = 0;
  virtual void attention_backward(const AttentionShape& shape, const TensorView& q,
                                  const TensorView& k, const TensorView& v,
                                  const TensorView& document_start, const TensorView& out,
                                  const TensorView& lse, const TensorView& dout,
                                  const TensorView& dq, const TensorView& dk,
                                  const TensorView& dv) = 0;
  /// Attention of N new tokens, of any number of sequences, whose earlier keys and values lie in a
  /// cache: first appends k and v (N, kv_heads*D) to it, then attends. The new tokens of sequence b
  /// are the rows [query_start[b], query_start[b + 1]) of q, k, v and out; they follow the first
  /// cached[b] tokens of the S that k_cache and v_cache (B * S, kv_heads*D, q's type) hold for it.
  /// query_start (1, B + 1), cached (1, B) i32. A row of out (N, heads*D) has the bits of
  /// attention_forward over the whole sequence as one document that starts it, if all operands are
  /// finite.
  virtual void attention_cached(const AttentionShape& shape, const TensorView& q,
                                const TensorView& k, const TensorView& v,
                                const TensorView& query_start, const TensorView& cached,
                                const TensorView& k_cache, const TensorView& v_cache,
                                const TensorView& out) = 0;
  /// out (T, F) = silu(gate) * up; gate_up (T, 2F) holds gate in the first F columns, then up.
  virtual void swiglu_forward(const TensorView& gate_up, const TensorView& out) = 0;
  virtual void swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                               const TensorView& dgate_up) = 0;
  /// Masked token cross-entropy. targets (1, T) i32, weights (1, T) f32 (0 or 1), logits (T, V).
  /// scalars[kLossSum] += tree sum of the token losses (nats); token_loss (1, T) f32 receives each.
  /// dlogits (may alias logits; empty: evaluation only) = weight * (softmax - onehot) *
  /// scalars[kInverseTokens].
  virtual void cross_entropy(const TensorView& logits, const TensorView& targets,
                             const TensorView& weights, const TensorView& scalars,
                             const TensorView& token_loss, const TensorView& dlogits) = 0;
  /// out (1, rows) i32 = column of the largest element of each row, the lowest one on a tie.
  virtual void argmax(const TensorView& logits, const TensorView& out) = 0;

  // --- an operation and the quantization of its result -------------------------------------------
  // What each does is written in its body, which a backend may replace by one pass over the data:
  // the result is stored, and quantized as it is stored, so that the bits are the same.
  /// y = rmsnorm(x), and `operand` = y quantized in its own orientation.
  virtual void rmsnorm_quantize(const TensorView& x, const TensorView& weight, float epsilon,
                                const TensorView& y, const TensorView& rstd, const RandomKey& key,
                                const TensorView& state, QuantizedOperand& operand) {
    rmsnorm_forward(x, weight, epsilon, y, rstd);
    quantize(y, false, key, state, operand);
  }
  /// out = silu(gate) * up, and `operand` = out quantized in its own orientation.
  virtual void swiglu_quantize(const TensorView& gate_up, const TensorView& out,
                               const RandomKey& key, const TensorView& state,
                               QuantizedOperand& operand) {
    swiglu_forward(gate_up, out);
    quantize(out, false, key, state, operand);
  }
  /// dgate_up, and both of its orientations quantized.
  virtual void swiglu_backward_quantize(const TensorView& gate_up, const TensorView& dout,
                                        const TensorView& dgate_up, const RandomKey& key,
                                        const TensorView& state, QuantizedOperand& first,
                                        QuantizedOperand& second) {
    swiglu_backward(gate_up, dout, dgate_up);
    quantize_both(dgate_up, key, state, first, second);
  }

  // --- optimizer --------------------------------------------------------------------------------
  /// scalars[kGradNormSquared] += tree sum of squares of gradient (f32).
  virtual void accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) = 0;
  /// kGradNorm, kClipFactor = min(1, clip_norm / (norm + 1e-6)), and beta powers for this step.
  virtual void begin_update(const AdamWSpec& spec, const TensorView& scalars) = 0;
  virtual void adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
                     const AdamWTensors& tensors) = 0;
};

}  // namespace fp8lab
