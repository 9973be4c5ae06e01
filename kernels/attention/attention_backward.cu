// Attention backward in two passes over the pairs: dK and dV by tiles of keys, dQ by tiles of
// queries, each in the order of emulation/ops/attention/attention.hpp. Each result is computed by
// one block. These kernels handle every call that attention_backward_wgmma.cu does not support.
//
//   attention_deltas           delta = tree_sum(dout * out); a warp for each token and head
//   attention_key_gradients    a block: 64 keys of a kv head, kWidth output columns; query heads of
//                              the group ascending, query tiles ascending
//   attention_query_gradients  a block: 64 queries of a head, kWidth output columns; key tiles
//                              ascending
//
//   +----------+----------+----------+----------+----------+---------+   shared memory, W = kWidth
//   | Q 64 x W | dO 64xW  | K 64 x W | V 64 x W | dS 64x64 | P 64x64 |   (P for keys only); rows of
//   +----------+----------+----------+----------+----------+---------+   dS and P are queries
//
//   PairTiles::compute, 64 queries (16 a warp) by 64 keys:
//     barrier, load Q and K, barrier     S = chain(0; Q, K^T)      for every kWidth columns of the
//     barrier, load dO and V, barrier    dP = chain(0; dO, V^T)    head, ascending
//     P = 2^(S * scale - lse), dS = P * (dP - delta)             to shared memory, masked: zeros
//   then, with the output columns loaded unless the tile holds them:
//     keys      barrier, load dO and Q, barrier    dV = chain(dV; P^T, dO), dK = chain(dK; dS^T, Q)
//     queries   barrier, load K, barrier           dQ = chain(dQ; dS, K)
//
// A warp owns 16 keys or 16 queries of the result, in registers until the end. For keys it
// reads the columns of P and dS that all warps have written: the barrier before the load
// publishes them, and the barrier of __syncthreads_or allows overwriting them. For queries it
// reads its own rows of dS.
#include "kernels/attention/attention_backward.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
struct BackwardTensors {
  OperandRows<T> q, k, v, dout;
  ResultRows lse;      ///< (heads, T)
  const float* delta;  ///< (heads, T)
  ResultRows dq, dk, dv;
};

/// Computes delta (heads, T) = tree_sum_d(dout * out), with one warp for each value.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_deltas(AttentionProblem problem, OperandRows<T> dout, ResultRows out, float* delta) {
  const std::int64_t task = std::int64_t{blockIdx.x} * kAttentionWarps + warp_id();
  if (task >= problem.tokens() * problem.heads) return;
  const std::int64_t token = task / problem.heads;
  const int head = static_cast<int>(task % problem.heads);
  const int first = head * problem.head_dim;
  const T* gradient = dout.data + token * dout.stride + first;
  const float sum = warp_tree_sum(problem.head_dim, [&](std::int64_t d) {
    return from_operand(gradient[d]) * out.load(token, first + static_cast<int>(d));
  });
  if (lane_id() == 0) delta[head * problem.tokens() + token] = sum;
}

/// The operand tiles of one block, and P and dS of its 64 x 64 pairs.
template <class T, int kWidth>
struct PairTiles {
  using OperandTile = Tile<T, kWidth>;
  using ScoreTile = Tile<T, kTileRows>;
  static constexpr std::size_t bytes(int score_tiles) {
    return (4 * OperandTile::kElements + score_tiles * ScoreTile::kElements) * sizeof(T);
  }

  const AttentionProblem& problem;
  const BackwardTensors<T>& tensors;
  OperandTile q, dout, k, v;
  ScoreTile ds, p;  ///< (queries, keys)

  __device__ PairTiles(const AttentionProblem& call, const BackwardTensors<T>& operands)
      : problem(call),
        tensors(operands),
        q(shared_memory<T>()),
        dout(q.row(kTileRows)),
        k(dout.row(kTileRows)),
        v(k.row(kTileRows)),
        ds(v.row(kTileRows)),
        p(ds.row(kTileRows)) {}

  __device__ HeadRows<T> queries(const OperandRows<T>& rows, int b, int head, int query) const {
    return {rows, problem.token(b, query), min(kTileRows, problem.sequence - query),
            head * problem.head_dim};
  }
  __device__ HeadRows<T> keys(const OperandRows<T>& rows, int b, int kv_head, int key) const {
    return queries(rows, b, kv_head, key);
  }

  /// Writes the operands dS, and P if kProbabilities, of the warp's 16 queries and the keys [key,
  /// key + kTileRows); zeros for masked pairs. Precondition: the whole block calls it.
  template <bool kProbabilities>
  __device__ void compute(const WarpQueries& rows, int b, int head, int query, int key) {
    const int kv_head = head / problem.group();
    const unsigned pairs = rows.groups(key, key + kTileRows);
    float score[kScoreBlocks][4], dprob[kScoreBlocks][4];
    clear(score);
    clear(dprob);
    add_scores(queries(tensors.q, b, head, query), keys(tensors.k, b, kv_head, key),
               problem.head_dim, pairs, q, k, score);
    add_scores(queries(tensors.dout, b, head, query), keys(tensors.v, b, kv_head, key),
               problem.head_dim, pairs, dout, v, dprob);
    const int offset =
        (warp_id() * kChainGroup + fragment_row()) * ScoreTile::kStride + fragment_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool inside = rows.position[r] >= 0;
      const std::int64_t token = problem.token(b, inside ? rows.position[r] : 0);
      const float lse = inside ? tensors.lse.load(head, token) : 0.0f;
      const float delta = inside ? tensors.delta[head * problem.tokens() + token] : 0.0f;
#pragma unroll
      for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool visible = rows.sees(r, key + 8 * n + fragment_column() + e);
          const int i = 2 * r + e;
          const float weight =
              weight_of<T>(numerics::score_distance(score[n][i], problem.factors.scale, lse));
          const float gradient = weight * (dprob[n][i] - delta);
          const int at = offset + r * 8 * ScoreTile::kStride + 8 * n + e;
          to_operand(visible ? gradient : 0.0f, ds.row(0) + at);
          if constexpr (kProbabilities) to_operand(visible ? weight : 0.0f, p.row(0) + at);
        }
      }
    }
  }
};

/// Stores the warp's 16 rows from position `first` on, columns [column, column + kWidth)
/// of a head, times `factor`.
template <int kWidth>
__device__ void store_rows(const AttentionProblem& problem, int b, int head, int first, int column,
                           const float (&acc)[kWidth / 8][4], float factor,
                           const ResultRows& result) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = first + fragment_row() + 8 * r;
    if (position >= problem.sequence) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = column + 8 * n + fragment_column() + e;
        if (c >= problem.head_dim) continue;
        result.store(problem.token(b, position), head * problem.head_dim + c,
                     acc[n][2 * r + e] * factor);
      }
    }
  }
}

/// Tile, (kv) head, sequence and first output column of a block; the tile varies slowest.
struct BackwardTask {
  int b, head, tile, column;

  __device__ BackwardTask(const AttentionProblem& problem, int heads, int width) {
    const int slices = (problem.head_dim + width - 1) / width;
    int rest = static_cast<int>(blockIdx.x);
    column = rest % slices * width;
    rest /= slices;
    head = rest % heads;
    rest /= heads;
    b = rest % problem.batch;
    tile = rest / problem.batch;
  }
};

/// Computes dQ of kTileRows queries of one head, keys ascending. Late tiles have the
/// most keys and come first.
template <class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, kBlocksPerSm<kWidth>)
    attention_query_gradients(AttentionProblem problem, BackwardTensors<T> tensors) {
  using Tiles = PairTiles<T, kWidth>;
  const BackwardTask task(problem, problem.heads, kWidth);
  const int query = (problem.tiles() - 1 - task.tile) * kTileRows;
  const int columns = min(kWidth, problem.head_dim - task.column);
  Tiles tiles(problem, tensors);
  const WarpQueries rows(PackedSequence{problem, task.b}, query + warp_id() * kChainGroup);
  const KeyRange seen(PackedSequence{problem, task.b}, query);
  float dq[kWidth / 8][4];
  clear(dq);
  for (int key = seen.first / kTileRows * kTileRows; key < seen.last; key += kTileRows) {
    tiles.template compute<false>(rows, task.b, task.head, query, key);
    __syncthreads();
    tiles.k.load(tiles.keys(tensors.k, task.b, task.head / problem.group(), key), task.column,
                 problem.head_dim);
    __syncthreads();
    chain<Stored::as_is, Stored::as_is>(
        tiles.ds.row(warp_id() * kChainGroup), Tiles::ScoreTile::kStride, tiles.k.row(0),
        Tiles::OperandTile::kStride, rows.groups(key, key + kTileRows), group_bits(columns), dq);
    __syncwarp();
  }
  store_rows<kWidth>(problem, task.b, task.head, query + warp_id() * kChainGroup, task.column, dq,
                     problem.factors.r, tensors.dq);
}

/// Computes dK and dV of kTileRows keys of one kv head, with query heads of the group
/// ascending and queries ascending.
template <class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_key_gradients(AttentionProblem problem, BackwardTensors<T> tensors) {
  using Tiles = PairTiles<T, kWidth>;
  const BackwardTask task(problem, problem.kv_heads, kWidth);
  const int key = task.tile * kTileRows;
  const int own_key = key + warp_id() * kChainGroup;
  const unsigned columns = group_bits(min(kWidth, problem.head_dim - task.column));
  Tiles tiles(problem, tensors);
  float dk[kWidth / 8][4], dv[kWidth / 8][4];
  clear(dk);
  clear(dv);
  for (int i = 0; i < problem.group(); ++i) {
    const int head = task.head * problem.group() + i;
    for (int query = first_query(problem, key); query < problem.sequence; query += kTileRows) {
      const unsigned groups = query_groups(problem, task.b, query, own_key);
      if (__syncthreads_or(static_cast<int>(groups)) == 0) continue;
      const WarpQueries rows(PackedSequence{problem, task.b}, query + warp_id() * kChainGroup);
      tiles.template compute<true>(rows, task.b, head, query, key);
      __syncthreads();
      tiles.dout.load(tiles.queries(tensors.dout, task.b, head, query), task.column,
                      problem.head_dim);
      tiles.q.load(tiles.queries(tensors.q, task.b, head, query), task.column, problem.head_dim);
      __syncthreads();
      chain<Stored::transposed, Stored::as_is>(tiles.p.row(0) + warp_id() * kChainGroup,
                                               Tiles::ScoreTile::kStride, tiles.dout.row(0),
                                               Tiles::OperandTile::kStride, groups, columns, dv);
      chain<Stored::transposed, Stored::as_is>(tiles.ds.row(0) + warp_id() * kChainGroup,
                                               Tiles::ScoreTile::kStride, tiles.q.row(0),
                                               Tiles::OperandTile::kStride, groups, columns, dk);
    }
  }
  store_rows<kWidth>(problem, task.b, task.head, own_key, task.column, dk, problem.factors.r,
                     tensors.dk);
  store_rows<kWidth>(problem, task.b, task.head, own_key, task.column, dv, 1.0f, tensors.dv);
}

template <class T, int kWidth>
void gradients(Context& context, const AttentionProblem& problem,
               const BackwardTensors<T>& tensors) {
  using Tiles = PairTiles<T, kWidth>;
  const std::int64_t slices = (problem.head_dim + kWidth - 1) / kWidth;
  const std::int64_t blocks = slices * problem.batch * problem.tiles();
  launch_attention(context, "attention_key_gradients", attention_key_gradients<T, kWidth>,
                   blocks * problem.kv_heads, Tiles::bytes(2), problem, tensors);
  launch_attention(context, "attention_query_gradients", attention_query_gradients<T, kWidth>,
                   blocks * problem.heads, Tiles::bytes(1), problem, tensors);
}

template <class T>
void backward(Context& context, const AttentionProblem& problem, const BackwardTensors<T>& tensors,
              const ResultRows& out, float* delta) {
  const std::int64_t rows = problem.tokens() * problem.heads;
  launch_attention(context, "attention_deltas", attention_deltas<T>,
                   (rows + kAttentionWarps - 1) / kAttentionWarps, 0, problem, tensors.dout, out,
                   delta);
  if (problem.head_dim > 64) {
    gradients<T, 128>(context, problem, tensors);
  } else {
    gradients<T, 64>(context, problem, tensors);
  }
}

}  // namespace

void run(Context& context, const ops::AttentionBackward& op) {
  op.check();
  if (op.shape.batch == 0) return;
  AttentionProblem problem =
      make_attention_problem("attention_backward", op.shape, op.document_start, nullptr);
  const bool wgmma = fits_wgmma(op, problem);
  const auto deltas = static_cast<std::size_t>(op.shape.heads * op.q.rows);
  const std::size_t bytes = wgmma ? backward_wgmma_workspace(op.shape) : deltas * sizeof(float);
  auto* memory = static_cast<std::byte*>(
      context.workspace(bytes + block_start_count(op.shape) * sizeof(std::int32_t)));
  problem.block_start = reinterpret_cast<std::int32_t*>(memory + bytes);
  find_block_starts(context, problem);
  if (wgmma) return attention_backward_wgmma(context, op, problem, memory);
  const auto run = [&]<class T>(T) {
    auto* delta = reinterpret_cast<float*>(memory);
    const BackwardTensors<T> tensors{
        operand_rows<T>(op.q),    operand_rows<T>(op.k), operand_rows<T>(op.v),
        operand_rows<T>(op.dout), result_rows(op.lse),   delta,
        result_rows(op.dq),       result_rows(op.dk),    result_rows(op.dv)};
    backward(context, problem, tensors, result_rows(op.out), delta);
  };
  if (op.q.dtype == DType::f32) {
    run(float{});
  } else {
    run(std::uint16_t{});
  }
}

}  // namespace fp8lab::cuda
