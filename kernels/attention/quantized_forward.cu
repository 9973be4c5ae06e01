// Attention forward on quantized operands, also against a cache
// (emulation/ops/attention/quantized_attention.hpp).
//
// The blocks, their tiles in shared memory and the loop over tiles of keys are those of
// attention_forward.cu, with operand tiles of 64 columns that hold decoded values:
//
//   for each kv tile that some query of the block sees, ascending, in steps of 64 keys:
//     S = chain(0; Q8, K8^T) over the head, times the scales of the keys unless the tile has one
//     m' = max(m, S * f), alpha = w(m' - m), l = l * alpha, O = O * alpha
//     P8 = cast(w(m' - S * f))                       to shared memory, decoded
//     l = l + chain(0; P8, 1), O = O + sv * chain(0; P8, V8)     partial sums in registers
//   out = O * (1 / l), lse = m + log2(l * sp)
//
// A kv tile of more than 64 keys is traversed twice, first for its maximum.
//
// quantized_forward_wgmma.cu computes what it supports; then this kernel does nothing unless v has
// codes that are not finite.
#include "emulation/ops/checks.hpp"
#include "kernels/attention/attention_forward.cuh"
#include "kernels/attention/quantized_forward.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
struct ForwardOperands {
  QuantizedRows<T> q, k, v;
  InnerCast p;
  InnerScale p_scale;
  Product scores, values;  ///< q k^T and p v
  float one;               ///< 1 as v's format rounds it
  bool k_is_constant;      ///< in each kv tile
};

/// The part of the problem that a block computes. Late q tiles have the most keys and come first.
struct QuantizedTask {
  int b, head, query, column;

  /// Precondition: a sequence has `tiles` q tiles, the first of which starts at query 0.
  __device__ QuantizedTask(const AttentionProblem& problem, int tiles, int index) {
    const int slices = (problem.head_dim + kQuantizedWidth - 1) / kQuantizedWidth;
    int rest = index;
    column = rest % slices * kQuantizedWidth;
    rest /= slices;
    head = rest % problem.heads;
    rest /= problem.heads;
    b = rest % problem.batch;
    query = (tiles - 1 - rest / problem.batch) * kTileRows;
  }
};

/// Adds the sum of the operands of a row in columns [first, last) times `one` to acc, which holds
/// two equal columns of the result: chain(acc; a, one). Precondition: the whole warp calls it.
template <class T>
__device__ void add_row_sums(const Product& product, const T* a, int stride, float one, int first,
                             int last, float (&acc)[4]) {
  const T* rows = a + fragment_row() * stride;
  if (product.is_fp8) {
    // Even lanes sum the upper row, odd lanes the lower one.
    const int lower = lane_id() % 2;
    T unit;
    to_operand(one, &unit);
    float own = acc[2 * lower];
    for (int group = first; group < last; group += kFp8Group) {
      own = fp8_element(product, min(kFp8Group, last - group), own,
                        Line<T>{rows + 8 * lower * stride + group, 1}, Line<T>{&unit, 0});
    }
    const float other = __shfl_xor_sync(kAllLanes, own, 1);
    acc[0] = acc[1] = lower == 0 ? own : other;
    acc[2] = acc[3] = lower == 0 ? other : own;
    return;
  }
  for (int group = first; group < last; group += kChainGroup) {
    if constexpr (sizeof(T) == sizeof(float)) {
      for (int k = group; k < min(group + kChainGroup, last); ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[i] = __fmaf_rn(rows[i / 2 * 8 * stride + k], one, acc[i]);
      }
#pragma unroll
      for (float& sum : acc) sum = __fadd_rn(sum, 0.0f);
    } else {
      const std::uint32_t bits = numerics::to_bf16(one);
      std::uint32_t left[4];
      load_left<Stored::as_is>(a + group, stride, left);
      multiply_group(left, bits | bits << 16, bits | bits << 16, acc);
    }
  }
}

/// Computes kTileRows output rows of one head, columns [column, column + kQuantizedWidth).
template <class T, class Sequence>
class QuantizedForwardBlock {
 public:
  using OperandTile = QuantizedTile<T>;
  using ScoreTile = Tile<T, kTileRows>;
  static constexpr std::size_t kBytes =
      (3 * OperandTile::kElements + ScoreTile::kElements + kCodeValues) * sizeof(T) +
      kTileRows * sizeof(float);

  __device__ QuantizedForwardBlock(const AttentionProblem& problem, const Sequence& sequence,
                                   const QuantizedTask& task, const ForwardOperands<T>& operands)
      : problem_(problem),
        sequence_(sequence),
        task_(task),
        operands_(operands),
        kv_head_(task.head / problem.group()),
        rows_(sequence, task.query + warp_id() * kChainGroup),
        q_tile_(shared_memory<T>()),
        k_tile_(q_tile_.end()),
        v_tile_(k_tile_.end()),
        p_tile_(v_tile_.end()),
        p_values_(p_tile_.row(0) + ScoreTile::kElements),
        k_scales_(reinterpret_cast<float*>(p_values_ + kCodeValues)) {}

  __device__ void run() {
    q_tile_.prepare(operands_.q);
    k_tile_.prepare(operands_.k);
    v_tile_.prepare(operands_.v);
    if (operands_.p.has_codes) decode_values(operands_.p.cast.element.format, p_values_);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows_.position[r] < 0) continue;
      q_scale_[r] = operands_.q.scales(sequence_.query_row(rows_.position[r]), task_.head);
    }
    const KeyRange seen(sequence_, task_.query);
    const int tile = problem_.kv_tile;
    for (int first = seen.first / tile * tile; first < seen.last; first += tile) {
      const int last = min(first + tile, sequence_.length());
      const int begin = first + (max(seen.first, first) - first) / kTileRows * kTileRows;
      add_tile(first, begin, min(last, seen.last), last);
    }
  }

  /// Stores out and, unless `lse` has no data, lse.
  __device__ void store(const ResultRows& out, const ResultRows& lse) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows_.position[r] < 0) continue;
      const std::int64_t token = sequence_.query_row(rows_.position[r]);
      const float inverse = 1.0f / sum_[0][2 * r];
#pragma unroll
      for (int n = 0; n < kResultBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = task_.column + 8 * n + fragment_column() + e;
          if (column >= problem_.head_dim) continue;
          out.store(token, task_.head * problem_.head_dim + column, out_[n][2 * r + e] * inverse);
        }
      }
      if (lse.data != nullptr && task_.column == 0 && fragment_column() == 0) {
        const float sum = sum_[0][2 * r] * operands_.p_scale.decode;
        lse.store(task_.head, token, maximum_[r] + numerics::log2(sum));
      }
    }
  }

 private:
  __device__ QuantizedHead<T> keys(const QuantizedRows<T>& rows, int key, int last) const {
    return {rows, sequence_.key_row(key), min(kTileRows, last - key), kv_head_ * problem_.head_dim};
  }

  /// Adds the keys [begin, end) of the kv tile [first, last), in steps of kTileRows. If there is
  /// more than one step, the first round finds the maximum and the second recomputes the scores.
  __device__ void add_tile(int first, int begin, int end, int last) {
    const std::int64_t row = sequence_.key_row(first);
    const float k_scale = operands_.k_is_constant ? operands_.k.scales(row, kv_head_) : 1.0f;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = operands_.k_is_constant ? q_scale_[r] * k_scale : q_scale_[r];
      factor[r] = scale * problem_.factors.scale;
    }
    const bool single = begin + kTileRows >= end;
    float score[kScoreBlocks][4];
    float largest[2] = {kMinusInfinity, kMinusInfinity};
    for (int key = begin; key < end; key += kTileRows) {
      compute_scores(key, last, score);
      find_largest(score, largest);
    }
    rescale(first, last, largest, factor);
    const int lower = max(rows_.first_key, first), upper = min(rows_.last_key, last);
    const bool promoted = operands_.values.is_promoted;
    Sums out;
    float sum[1][4];
    begin_sum(promoted, out_, out);
    begin_sum(promoted, sum_, sum);
    for (int key = begin; key < end; key += kTileRows) {
      if (!single) compute_scores(key, last, score);
      add_values(key, last, summed_range(first, lower, upper, key), factor, score, out, sum[0]);
    }
    if (lower >= upper) return;
    end_sum(promoted, out, operands_.v.scales(row, kv_head_), out_);
    end_sum(promoted, sum, 1.0f, sum_);
  }

  /// Computes the scores of keys [key, key + kTileRows), with -infinity for masked pairs.
  __device__ void compute_scores(int key, int last, float (&score)[kScoreBlocks][4]) {
    clear(score);
    const QuantizedHead<T> queries{operands_.q, sequence_.query_row(task_.query),
                                   min(kTileRows, sequence_.length() - task_.query),
                                   task_.head * problem_.head_dim};
    add_scores(
        operands_.scores, queries, keys(operands_.k, key, last), problem_.head_dim,
        rows_.groups(key, min(key + kTileRows, last)), q_tile_, k_tile_,
        [&] {
          const int position = key + static_cast<int>(threadIdx.x);
          if (threadIdx.x >= kTileRows || position >= last || operands_.k_is_constant) return;
          k_scales_[threadIdx.x] = operands_.k.scales(sequence_.key_row(position), kv_head_);
        },
        score);
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!visible(n, i, key, last)) {
          score[n][i] = kMinusInfinity;
        } else if (!operands_.k_is_constant) {
          score[n][i] = score[n][i] * k_scales_[8 * n + fragment_column() + i % 2];
        }
      }
    }
  }

  __device__ static void raise(float& largest, float score) {
    largest = score > largest ? score : largest;
  }
  __device__ void find_largest(const float (&score)[kScoreBlocks][4], float (&largest)[2]) const {
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) raise(largest[i / 2], score[n][i]);
    }
  }

  /// Updates the maximum from the thread's largest scores of the tile, and multiplies sum and
  /// output by alpha, for rows that see keys of the tile [first, last).
  __device__ void rescale(int first, int last, float (&largest)[2], const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int span = 1; span <= 2; span *= 2) {
        raise(largest[r], __shfl_xor_sync(kAllLanes, largest[r], span));
      }
      if (!rows_.sees_any(r, first, last)) continue;
      float maximum = maximum_[r];
      raise(maximum, largest[r] * factor[r]);
      const float alpha =
          maximum_[r] == kMinusInfinity ? 0.0f : weight_of<T>(maximum - maximum_[r]);
      maximum_[r] = maximum;
#pragma unroll
      for (int e = 0; e < 2; ++e) sum_[0][2 * r + e] = sum_[0][2 * r + e] * alpha;
#pragma unroll
      for (int n = 0; n < kResultBlocks; ++n) {
        out_[n][2 * r] = out_[n][2 * r] * alpha;
        out_[n][2 * r + 1] = out_[n][2 * r + 1] * alpha;
      }
    }
  }

  /// Computes P of the keys from `key` on, and adds its sums and its products with V over `range`.
  __device__ void add_values(int key, int last, const StepRange& range, const float (&factor)[2],
                             const float (&score)[kScoreBlocks][4], Sums& out, float (&sum)[4]) {
    __syncthreads();
    v_tile_.load(keys(operands_.v, key, last), task_.column, problem_.head_dim);
    __syncthreads();
    T* own = p_tile_.row(warp_id() * kChainGroup);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = maximum_[r] == kMinusInfinity ? 0.0f : maximum_[r];
#pragma unroll
      for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * r + e;
          const float weight =
              weight_of<T>(numerics::score_distance(score[n][i], factor[r], reference));
          operands_.p.store(
              visible(n, i, key, last) ? weight : 0.0f, operands_.p_scale, p_values_,
              own + (fragment_row() + 8 * r) * ScoreTile::kStride + 8 * n + fragment_column() + e);
        }
      }
    }
    __syncwarp();
    if (range.first < range.last) {
      multiply<Stored::as_is, Stored::as_is>(
          operands_.values, own, ScoreTile::kStride, v_tile_.row(0), OperandTile::kStride,
          range.first, range.last,
          group_bits(min(kQuantizedWidth, problem_.head_dim - task_.column)), out);
      add_row_sums(operands_.values, own, ScoreTile::kStride, operands_.one, range.first,
                   range.last, sum);
    }
    __syncwarp();
  }

  __device__ bool visible(int n, int i, int key, int last) const {
    const int j = key + 8 * n + fragment_column() + i % 2;
    return j < last && rows_.sees(i / 2, j);
  }

  const AttentionProblem& problem_;
  const Sequence& sequence_;
  const QuantizedTask& task_;
  const ForwardOperands<T>& operands_;
  int kv_head_;
  WarpQueries rows_;
  OperandTile q_tile_, k_tile_, v_tile_;
  ScoreTile p_tile_;  ///< a warp writes and reads its own 16 rows
  T* p_values_;
  float* k_scales_;  ///< of the keys of a step, unless the kv tile has one scale
  float q_scale_[2] = {1.0f, 1.0f};
  float maximum_[2] = {kMinusInfinity, kMinusInfinity};
  float sum_[1][4] = {};
  Sums out_ = {};
};

template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    quantized_forward_kernel(const __grid_constant__ AttentionProblem problem,
                             const __grid_constant__ ForwardOperands<T> operands, ResultRows out,
                             ResultRows lse, int tasks, const std::uint32_t* wanted) {
  if (wanted != nullptr && *wanted == 0) return;
  for (int index = static_cast<int>(blockIdx.x); index < tasks;
       index += static_cast<int>(gridDim.x)) {
    const QuantizedTask task(problem, problem.tiles(), index);
    const PackedSequence sequence{problem, task.b};
    QuantizedForwardBlock<T, PackedSequence> block(problem, sequence, task, operands);
    block.run();
    block.store(out, lse);
    __syncthreads();  // the tables of codes, which the next task writes again
  }
}

template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    quantized_cached_kernel(const __grid_constant__ AttentionProblem problem, NewTokens tokens,
                            int tiles, const __grid_constant__ ForwardOperands<T> operands,
                            ResultRows out) {
  QuantizedTask task(problem, tiles, static_cast<int>(blockIdx.x));
  if (!tokens.fits(task.b)) return;
  const CachedSequence sequence = tokens.sequence(task.b);
  task.query += sequence.held;
  if (task.query >= sequence.end) return;
  QuantizedForwardBlock<T, CachedSequence> block(problem, sequence, task, operands);
  block.run();
  block.store(out, ResultRows{});
}

/// The value of 1 in v's format: what a sum of weights multiplies.
float one_of(const QuantSpec& v) {
  if (!v.is_quantized()) return 1.0f;
  return numerics::decode(v.format, numerics::encode(v.format, numerics::float_bits(1.0f)));
}

template <class T>
ForwardOperands<T> forward_operands(const AttentionShape& shape, const QuantizedOperand& q,
                                    const QuantizedOperand& k, const QuantizedOperand& v,
                                    const QuantSpec& p) {
  return {quantized_rows<T>(q, shape.head_dim),
          quantized_rows<T>(k, shape.head_dim),
          quantized_rows<T>(v, shape.head_dim),
          inner_cast(p),
          fixed_scale(p),
          product_of(q.spec, k.spec),
          product_of(p, v.spec),
          one_of(v.spec),
          has_one_scale_per_tile(k.spec, shape.sequence, shape.kv_tile)};
}

/// `wanted`: nullptr, or a word on the device without which nothing is computed.
template <class T>
void forward(Context& context, const ops::QuantizedAttentionForward& op,
             const AttentionProblem& problem, const std::uint32_t* wanted) {
  const std::int64_t slices = (problem.head_dim + kQuantizedWidth - 1) / kQuantizedWidth;
  const std::int64_t tasks = slices * problem.heads * problem.batch * problem.tiles();
  const std::int64_t resident = std::int64_t{2} * context.multiprocessors();
  launch_attention(context, "quantized_attention_forward", quantized_forward_kernel<T>,
                   wanted == nullptr ? tasks : std::min(tasks, resident),
                   QuantizedForwardBlock<T, PackedSequence>::kBytes, problem,
                   forward_operands<T>(op.shape, op.q, op.k, op.v, op.p), result_rows(op.out),
                   result_rows(op.lse), static_cast<int>(tasks), wanted);
}

/// The operand that a cache holds, as k or v of the new tokens.
QuantizedOperand cached_operand(const QuantizedOperand& fresh, const TensorView& cache,
                                const TensorView& scales) {
  QuantizedOperand operand = fresh;
  operand.rows = cache.rows;
  operand.codes = cache;
  if (!scales.empty()) operand.scales = scales;
  return operand;
}

template <class T>
void forward_cached(Context& context, const ops::QuantizedAttentionCached& op,
                    const AttentionProblem& problem, const NewTokens& tokens) {
  const QuantizedOperand k = cached_operand(op.k, op.k_cache, op.k_scale_cache);
  const QuantizedOperand v = cached_operand(op.v, op.v_cache, {});
  const int tiles = (std::min(tokens.rows, tokens.capacity) + kTileRows - 1) / kTileRows;
  const std::int64_t slices = (problem.head_dim + kQuantizedWidth - 1) / kQuantizedWidth;
  if (tiles == 0) return;
  launch_attention(context, "quantized_attention_cached", quantized_cached_kernel<T>,
                   slices * problem.heads * problem.batch * tiles,
                   QuantizedForwardBlock<T, CachedSequence>::kBytes, problem, tokens, tiles,
                   forward_operands<T>(op.shape, op.q, k, v, op.p), result_rows(op.out));
}

}  // namespace

void run(Context& context, const ops::QuantizedAttentionForward& op) {
  op.check();
  if (op.shape.batch == 0) return;
  AttentionProblem problem =
      make_attention_problem("quantized_attention_forward", op.shape, op.document_start, nullptr);
  const bool wgmma = fits_wgmma(op, problem);
  const std::size_t values = wgmma ? arranged_values_bytes(problem) : 0;
  const std::size_t starts = block_start_count(op.shape) * sizeof(std::int32_t);
  auto* const workspace =
      static_cast<std::byte*>(context.workspace(values + starts + sizeof(std::uint32_t)));
  problem.block_start = reinterpret_cast<std::int32_t*>(workspace + values);
  find_block_starts(context, problem);
  std::uint32_t* special = nullptr;
  if (wgmma) {
    special = reinterpret_cast<std::uint32_t*>(workspace + values + starts);
    quantized_forward_wgmma(context, op, problem, workspace, special);
  }
  const auto launch = op.values == DType::f32 ? forward<float> : forward<std::uint16_t>;
  launch(context, op, problem, special);
}

void run(Context& context, const ops::QuantizedAttentionCached& op) {
  op.check();
  if (op.shape.batch == 0) return;
  const AttentionProblem problem =
      make_attention_problem("quantized_attention_cached", op.shape, {}, nullptr);
  const NewTokens tokens = new_tokens(problem, op.q.rows, op.query_start, op.cached);
  append_to_cache(context, tokens, op.k.codes, op.k_cache);
  append_to_cache(context, tokens, op.v.codes, op.v_cache);
  if (!op.k_scale_cache.empty()) append_to_cache(context, tokens, op.k.scales, op.k_scale_cache);
  const auto launch =
      op.values == DType::f32 ? forward_cached<float> : forward_cached<std::uint16_t>;
  launch(context, op, problem, tokens);
}

}  // namespace fp8lab::cuda
