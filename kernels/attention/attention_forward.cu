// Attention forward, also against a cache: online softmax over kv tiles, in the order of
// emulation/ops/attention/attention.hpp, for every shape and type. attention_forward_wgmma.cu has
// the fast path for most forward passes.
//
// A block computes 64 queries of one head, 16 for each of its four warps, and kWidth (64 or 128)
// output columns. A wider head dimension takes several blocks, each of which computes all scores.
//
//   Q, K, V in global memory
//        |  16-byte vectors, four in flight for each of the 128 threads
//        v
//   +------------+------------+------------+---------+   shared memory, W = kWidth; in bf16
//   | Q 64 x W   | K 64 x W   | V 64 x W   | P 64x64 |   36 KiB for W = 64, 60 KiB for 128, in f32
//   +------------+------------+------------+---------+   68 and 116 KiB
//     filled by the whole block, read by every warp     P: a warp writes and reads its own 16 rows
//
//   for each kv tile that some query of the block sees, ascending, in steps of 64 keys:
//     barrier, load Q and K, barrier   once for every kWidth columns of the head; data that a tile
//                                      already holds is not reloaded: Q stays if D <= kWidth
//     S = chain(0; Q, K^T)             registers; masked elements -infinity
//     m' = max(m, S * scale)           the four lanes of a row, by shuffles
//     alpha = 2^(m - m')               l = l * alpha, O = O * alpha
//     barrier, load V, barrier
//     P = 2^(S * scale - m')           to shared memory, rounded to the operand type; __syncwarp
//     l = chain(l; P, 1)
//     O = chain(O; P, V)               registers; __syncwarp before P is written again
//   out = O * (1 / l), lse = m + log2 l, from registers
//
// First barrier of a pair: every warp has read the data that is overwritten. Second barrier: the
// loaded data is visible. A kv tile of more than 64 keys is traversed twice, first for its maximum,
// then for P; the second pass recomputes the scores, which are never stored.
#include "kernels/attention/attention_forward.cuh"

#include <algorithm>

#include "kernels/runtime/fault.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// The part of the problem that a block computes. Late q tiles have the most keys and come first.
struct ForwardTask {
  int b, head, query, column;

  /// Precondition: a sequence has `tiles` q tiles, the first of which starts at query 0.
  __device__ ForwardTask(const AttentionProblem& problem, int tiles, int width) {
    const int slices = (problem.head_dim + width - 1) / width;
    int rest = static_cast<int>(blockIdx.x);
    column = rest % slices * width;
    rest /= slices;
    head = rest % problem.heads;
    rest /= problem.heads;
    b = rest % problem.batch;
    query = (tiles - 1 - rest / problem.batch) * kTileRows;
  }
};

/// Computes kTileRows output rows of one head, columns [column, column + kWidth).
template <class T, int kWidth, class Sequence>
class ForwardBlock {
 public:
  using OperandTile = Tile<T, kWidth>;
  using ScoreTile = Tile<T, kTileRows>;
  static constexpr std::size_t kBytes =
      (3 * OperandTile::kElements + ScoreTile::kElements) * sizeof(T);

  __device__ ForwardBlock(const AttentionProblem& problem, const Sequence& sequence,
                          const ForwardTask& task, const OperandRows<T>& q, const OperandRows<T>& k,
                          const OperandRows<T>& v)
      : problem_(problem),
        sequence_(sequence),
        task_(task),
        k_(k),
        v_(v),
        rows_(sequence, task.query + warp_id() * kChainGroup),
        queries_{q, sequence.query_row(task.query), min(kTileRows, sequence.length() - task.query),
                 task.head * problem.head_dim},
        q_tile_(shared_memory<T>()),
        k_tile_(q_tile_.row(kTileRows)),
        v_tile_(k_tile_.row(kTileRows)),
        p_tile_(v_tile_.row(kTileRows)) {}

  __device__ void run() {
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
      const float inverse = 1.0f / sum_[2 * r];
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = task_.column + 8 * n + fragment_column() + e;
          if (column >= problem_.head_dim) continue;
          out.store(token, task_.head * problem_.head_dim + column, out_[n][2 * r + e] * inverse);
        }
      }
      if (lse.data != nullptr && task_.column == 0 && fragment_column() == 0) {
        lse.store(task_.head, token, maximum_[r] + numerics::log2(sum_[2 * r]));
      }
    }
  }

 private:
  __device__ HeadRows<T> keys(const OperandRows<T>& rows, int key, int last) const {
    return {rows, sequence_.key_row(key), min(kTileRows, last - key),
            task_.head / problem_.group() * problem_.head_dim};
  }

  /// Adds the keys [begin, end) of the kv tile [first, last), in steps of kTileRows. If there is
  /// more than one step, the first round finds the maximum and the second recomputes the scores.
  __device__ void add_tile(int first, int begin, int end, int last) {
    const bool single = begin + kTileRows >= end;
    float score[kScoreBlocks][4];
    float largest[2] = {kMinusInfinity, kMinusInfinity};
    for (int key = begin; key < end; key += kTileRows) {
      compute_scores(key, last, score);
      find_largest(score, largest);
    }
    rescale(first, last, largest);
    for (int key = begin; key < end; key += kTileRows) {
      if (!single) compute_scores(key, last, score);
      add_values(key, last, score);
    }
  }

  /// Computes the scores of keys [key, key + kTileRows), with -infinity for masked pairs.
  __device__ void compute_scores(int key, int last, float (&score)[kScoreBlocks][4]) {
    clear(score);
    add_scores(queries_, keys(k_, key, last), problem_.head_dim, groups(key, last), q_tile_,
               k_tile_, score);
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = visible(n, i, key, last) ? score[n][i] : kMinusInfinity;
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
  __device__ void rescale(int first, int last, float (&largest)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int span = 1; span <= 2; span *= 2) {
        raise(largest[r], __shfl_xor_sync(kAllLanes, largest[r], span));
      }
      if (!rows_.sees_any(r, first, last)) continue;
      float maximum = maximum_[r];
      raise(maximum, largest[r] * problem_.factors.scale);
      const float alpha =
          maximum_[r] == kMinusInfinity ? 0.0f : weight_of<T>(maximum - maximum_[r]);
      maximum_[r] = maximum;
#pragma unroll
      for (int e = 0; e < 2; ++e) sum_[2 * r + e] = sum_[2 * r + e] * alpha;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        out_[n][2 * r] = out_[n][2 * r] * alpha;
        out_[n][2 * r + 1] = out_[n][2 * r + 1] * alpha;
      }
    }
  }

  /// Computes the probabilities of the keys from `key` on, their sums, and their products with V.
  __device__ void add_values(int key, int last, float (&score)[kScoreBlocks][4]) {
    __syncthreads();
    v_tile_.load(keys(v_, key, last), task_.column, problem_.head_dim);
    __syncthreads();
    const unsigned taking_part = groups(key, last);
    if (taking_part == 0) return;
    T* p = p_tile_.row(warp_id() * kChainGroup);
    T* own = p + fragment_row() * ScoreTile::kStride + fragment_column();
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float reference = maximum_[i / 2] == kMinusInfinity ? 0.0f : maximum_[i / 2];
        const float weight =
            weight_of<T>(numerics::score_distance(score[n][i], problem_.factors.scale, reference));
        score[n][i] = visible(n, i, key, last) ? weight : 0.0f;
        to_operand(score[n][i], own + i / 2 * 8 * ScoreTile::kStride + 8 * n + i % 2);
      }
    }
    __syncwarp();
    add_rows(p, ScoreTile::kStride, taking_part, sum_);
    chain<Stored::as_is, Stored::as_is>(
        p, ScoreTile::kStride, v_tile_.row(0), OperandTile::kStride, taking_part,
        group_bits(min(kWidth, problem_.head_dim - task_.column)), out_);
    __syncwarp();
  }

  __device__ unsigned groups(int key, int last) const {
    return rows_.groups(key, min(key + kTileRows, last));
  }
  __device__ bool visible(int n, int i, int key, int last) const {
    const int j = key + 8 * n + fragment_column() + i % 2;
    return rows_.sees(i / 2, j) && j < last;
  }

  const AttentionProblem& problem_;
  const Sequence sequence_;
  const ForwardTask task_;
  const OperandRows<T> k_, v_;
  const WarpQueries rows_;
  const HeadRows<T> queries_;
  OperandTile q_tile_, k_tile_, v_tile_;
  ScoreTile p_tile_;
  float maximum_[2] = {kMinusInfinity, kMinusInfinity};
  float sum_[4] = {};  ///< two neighbouring columns; those of a row are equal
  float out_[kWidth / 8][4] = {};
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksPerSm<kWidth>)
    attention_forward_kernel(AttentionProblem problem, OperandRows<T> q, OperandRows<T> k,
                             OperandRows<T> v, ResultRows out, ResultRows lse) {
  const ForwardTask task(problem, problem.tiles(), kWidth);
  ForwardBlock<T, kWidth, PackedSequence> block(problem, {problem, task.b}, task, q, k, v);
  block.run();
  block.store(out, lse);
}

template <class T, int kWidth>
void forward(Context& context, const AttentionProblem& problem, const TensorView& q,
             const TensorView& k, const TensorView& v, const TensorView& out,
             const TensorView& lse) {
  const std::int64_t slices = (problem.head_dim + kWidth - 1) / kWidth;
  launch_attention(context, "attention_forward", attention_forward_kernel<T, kWidth>,
                   slices * problem.heads * problem.batch * problem.tiles(),
                   ForwardBlock<T, kWidth, PackedSequence>::kBytes, problem, operand_rows<T>(q),
                   operand_rows<T>(k), operand_rows<T>(v), result_rows(out), result_rows(lse));
}

// --- against a cache ----------------------------------------------------------------------------

/// Appends new rows of `columns` vectors to the caches, with `parts` blocks for each sequence.
/// Reports invalid counts and skips such sequences.
template <class Vector>
__global__ void append_to_cache_kernel(NewTokens tokens, int parts, OperandRows<Vector> source,
                                       Vector* cache, std::int64_t cache_stride, int columns,
                                       std::uint32_t* faults) {
  const int b = static_cast<int>(blockIdx.x) / parts, part = static_cast<int>(blockIdx.x) % parts;
  const bool ends = (b > 0 || tokens.first(0) == 0) &&
                    (b + 1 < tokens.batch || tokens.query_start[tokens.batch] == tokens.rows);
  if (!ends || !tokens.fits(b)) {
    if (threadIdx.x == 0) report(faults, Fault::cached_tokens);
    return;
  }
  const CachedSequence sequence = tokens.sequence(b);
  const std::int64_t vectors = std::int64_t{sequence.end - sequence.held} * columns;
  for (std::int64_t at = std::int64_t{part} * kAttentionThreads + threadIdx.x; at < vectors;
       at += std::int64_t{parts} * kAttentionThreads) {
    const int i = sequence.held + static_cast<int>(at / columns);
    const int c = static_cast<int>(at % columns);
    cache[sequence.key_row(i) * cache_stride + c] =
        source.data[sequence.query_row(i) * source.stride + c];
  }
}

/// Appends the new rows of `source` to `cache` in vectors of type Vector.
template <class Vector>
void append_rows(Context& context, const NewTokens& tokens, const TensorView& source,
                 const TensorView& cache) {
  const auto vectors = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(source.dtype)) /
           static_cast<std::int64_t>(sizeof(Vector));
  };
  const int most = std::max(4 * context.multiprocessors() / tokens.batch, 1);
  const std::int64_t columns = vectors(source.cols);
  const std::int64_t work =
      (source.rows * columns / tokens.batch + kAttentionThreads - 1) / kAttentionThreads;
  const int parts = static_cast<int>(std::clamp<std::int64_t>(work, 1, most));
  launch_attention(
      context, "append_to_cache", append_to_cache_kernel<Vector>,
      std::int64_t{tokens.batch} * parts, 0, tokens, parts,
      OperandRows<Vector>{static_cast<const Vector*>(source.data), vectors(source.row_stride)},
      static_cast<Vector*>(cache.data), vectors(cache.row_stride), static_cast<int>(columns),
      context.faults());
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksPerSm<kWidth>)
    attention_cached_kernel(AttentionProblem problem, NewTokens tokens, int tiles, OperandRows<T> q,
                            OperandRows<T> k, OperandRows<T> v, ResultRows out) {
  ForwardTask task(problem, tiles, kWidth);
  if (!tokens.fits(task.b)) return;
  const CachedSequence sequence = tokens.sequence(task.b);
  task.query += sequence.held;
  if (task.query >= sequence.end) return;
  ForwardBlock<T, kWidth, CachedSequence> block(problem, sequence, task, q, k, v);
  block.run();
  block.store(out, ResultRows{});
}

template <class T, int kWidth>
void forward_cached(Context& context, const AttentionProblem& problem, const NewTokens& tokens,
                    const TensorView& q, const TensorView& k_cache, const TensorView& v_cache,
                    const TensorView& out) {
  const int tiles = (std::min(tokens.rows, tokens.capacity) + kTileRows - 1) / kTileRows;
  const std::int64_t slices = (problem.head_dim + kWidth - 1) / kWidth;
  launch_attention(context, "attention_cached", attention_cached_kernel<T, kWidth>,
                   slices * problem.heads * problem.batch * tiles,
                   ForwardBlock<T, kWidth, CachedSequence>::kBytes, problem, tokens, tiles,
                   operand_rows<T>(q), operand_rows<T>(k_cache), operand_rows<T>(v_cache),
                   result_rows(out));
}

template <class T>
void run_cached(Context& context, const AttentionProblem& problem, const NewTokens& tokens,
                const TensorView& q, const TensorView& k, const TensorView& v,
                const TensorView& k_cache, const TensorView& v_cache, const TensorView& out) {
  append_to_cache(context, tokens, k, k_cache);
  append_to_cache(context, tokens, v, v_cache);
  if (fits_wgmma(q, k_cache, v_cache, out, problem)) {
    return attention_cached_wgmma(context, q, k_cache, v_cache, out, problem, tokens);
  }
  const auto forward = problem.head_dim > 64 ? forward_cached<T, 128> : forward_cached<T, 64>;
  forward(context, problem, tokens, q, k_cache, v_cache, out);
}

}  // namespace

NewTokens new_tokens(const AttentionProblem& problem, std::int64_t rows,
                     const TensorView& query_start, const TensorView& cached) {
  return {query_start.row<const std::int32_t>(0),
          cached.row<const std::int32_t>(0),
          static_cast<int>(rows),
          problem.batch,
          problem.sequence,
          problem.window};
}

void append_to_cache(Context& context, const NewTokens& tokens, const TensorView& source,
                     const TensorView& cache) {
  const auto is_whole = [](const TensorView& view) {
    const auto elements = static_cast<std::int64_t>(sizeof(uint4) / size_of(view.dtype));
    return view.cols % elements == 0 && view.row_stride % elements == 0 &&
           reinterpret_cast<std::uintptr_t>(view.data) % sizeof(uint4) == 0;
  };
  if (is_whole(source) && is_whole(cache)) {
    return append_rows<uint4>(context, tokens, source, cache);
  }
  switch (size_of(source.dtype)) {
    case 1: return append_rows<std::uint8_t>(context, tokens, source, cache);
    case 2: return append_rows<std::uint16_t>(context, tokens, source, cache);
    default: return append_rows<std::uint32_t>(context, tokens, source, cache);
  }
}

void run(Context& context, const ops::AttentionForward& op) {
  op.check();
  if (op.shape.batch == 0) return;
  AttentionProblem problem =
      make_attention_problem("attention_forward", op.shape, op.document_start, nullptr);
  if (fits_wgmma(op, problem)) return attention_forward_wgmma(context, op, problem);
  problem.block_start = static_cast<std::int32_t*>(
      context.workspace(block_start_count(op.shape) * sizeof(std::int32_t)));
  find_block_starts(context, problem);
  const bool wide = op.shape.head_dim > 64;
  const auto launch = op.q.dtype == DType::f32
                          ? (wide ? forward<float, 128> : forward<float, 64>)
                          : (wide ? forward<std::uint16_t, 128> : forward<std::uint16_t, 64>);
  launch(context, problem, op.q, op.k, op.v, op.out, op.lse);
}

void run(Context& context, const ops::AttentionCached& op) {
  op.check();
  if (op.shape.batch == 0) return;
  const AttentionProblem problem =
      make_attention_problem("attention_cached", op.shape, {}, nullptr);
  const NewTokens tokens = new_tokens(problem, op.q.rows, op.query_start, op.cached);
  const auto launch = op.q.dtype == DType::f32 ? run_cached<float> : run_cached<std::uint16_t>;
  launch(context, problem, tokens, op.q, op.k, op.v, op.k_cache, op.v_cache, op.out);
}

}  // namespace fp8lab::cuda
