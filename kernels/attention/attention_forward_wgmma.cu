// Attention forward on the tensor cores of Hopper, also against a cache: a persistent kernel with
// wgmma and TMA. In the order of emulation/ops/attention/attention.hpp, for kv tiles of 64 keys.
//
// An item is 64 queries of one head. A block processes tasks one after another. A task has one item
// for each consumer warpgroup, all of one key-value head, so that they share keys and values. Late
// queries see the most keys and come first.
//
//   Q, K, V in global memory
//        |  TMA: one thread of the producer warpgroup, boxes of 64 rows by 64 columns
//        v
//   +-----+-----+-----+   +-----+-----+-----+-----+   +-----+-----+-----+-----+
//   | Q 0 | Q 1 | Q 2 |   | K 0 | K 1 | K 2 | K 3 |   | V 0 | V 1 | V 2 | V 3 |   shared memory
//   +-----+-----+-----+   +-----+-----+-----+-----+   +-----+-----+-----+-----+   64 x D each
//     q_full: task and queries have arrived             k_full[s], v_full[s]: bytes have arrived
//     q_empty: every warp's last S is done              k_empty[s], v_empty[s]: every warp's
//        |                                              products with the stage are done
//        v
//   consumer warpgroup, 64 queries, 16 for each warp; for the kv tiles n of its item, ascending:
//
//     tensor core   | S(n) = Q K(n)^T | O += P(n-1) V(n-1), l += P(n-1) 1 |     | S(n+1) ...
//     CUDA cores                      | m', alpha, P(n) = 2^(S(n) - m')   | O, l *= alpha |
//
//     S, P, O and l are registers. While one warpgroup leaves the tensor core or the CUDA cores
//     idle, the two others use them, as they are at other points of their items.
//   out = O * (1 / l): shared memory, TMA; lse = m + log2(l)
//
// With a cache, the 64 queries of an item need not begin at a kv tile, so that two tiles can
// contain keys that some of the queries must not see. Rows of a V tile past the last token
// hold undefined data and are set to zero in shared memory. out is stored row by row,
// because other sequences follow.
//
// A chain takes groups of 16 in ascending order, the k16 of wgmma. Masked products of a tile are
// included as zeros (attention.hpp: they change no bit of finite operands). attention_weight uses
// its short form while all results of a warp are normal.
#include "kernels/attention/attention_forward.cuh"

#include <algorithm>
#include <initializer_list>

#include "kernels/attention/forward_tasks.cuh"
#include "kernels/attention/head_tile.cuh"
#include "kernels/attention/online_softmax.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kConsumers = 3;  ///< consumer warpgroups
constexpr int kStages = 4;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarpSize;
constexpr int kValueSteps = kTileRows / kChainGroup;
constexpr int kSumColumns = 8;  ///< of l, all equal: the fewest that an instruction computes
// Registers of a thread. A multiprocessor has 128 for each of 512 threads.
constexpr int kCopyRegisters = 32, kRegisters = 160;

// --- shared memory ------------------------------------------------------------------------------

/// Eight rows of 64 bf16 ones; any 16 columns of it are a B operand.
struct alignas(1024) Ones {
  std::uint16_t rows[kSumColumns][kSwizzleColumns];
};

template <int kHeadDim>
struct Shared {
  using Tile = HeadTile<kHeadDim>;
  Tile q[kConsumers];
  Tile out[kConsumers];
  Tile k[kStages];
  Tile v[kStages];
  Ones ones;
  Task<kConsumers> task;
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[kStages], k_empty[kStages];
  std::uint64_t v_full[kStages], v_empty[kStages];
};

/// Tensor maps of (column, position, sequence) with boxes of 64 columns by 64 positions,
/// for out by the 16 positions of a warp. With a cache, queries form one matrix, and out
/// is stored without its map.
struct Maps {
  CUtensorMap q, k, v, out;
};

// --- producer warpgroup --------------------------------------------------------------------------

/// Precondition: one warp runs it. Its first lane issues the copies.
template <int kHeadDim, class Sequences>
__device__ void copy_operands(const Maps& maps, const AttentionProblem& problem,
                              const Sequences& sequences, const Tasks<Sequences, kConsumers>& tasks,
                              Shared<kHeadDim>& shared) {
  constexpr int kBytes = sizeof(HeadTile<kHeadDim>);
  Ring<kStages> ring;
  Ring<1> queries;
  while (true) {
    const Task<kConsumers> task = tasks.take();
    if (lane_id() == 0) {
      barrier_wait(&shared.q_empty, queries.parity ^ 1);
      shared.task = task;
      int present = 0;
#pragma unroll
      for (int c = 0; c < kConsumers; ++c) present += task.items[c].last > 0;
      barrier_expect(&shared.q_full, present * kBytes);
#pragma unroll
      for (int c = 0; c < kConsumers; ++c) {
        const Item& item = task.items[c];
        if (item.last == 0) continue;
        const QueryRows rows = Sequences::query_rows(sequences.of(problem, task.b), item.query);
        copy_tile(shared.q[c], &maps.q, &shared.q_full, item.head, rows.row, rows.matrix);
      }
#pragma unroll 1
      for (int tile = task.first; tile < task.last; ++tile, ring.advance()) {
        const auto copy = [&](HeadTile<kHeadDim>& to, const CUtensorMap& map, std::uint64_t* full,
                              std::uint64_t* empty) {
          barrier_wait(empty, ring.parity ^ 1);
          barrier_expect(full, kBytes);
          copy_tile(to, &map, full, task.kv_head, tile * kTileRows, task.b);
        };
        const int s = ring.stage;
        copy(shared.k[s], maps.k, &shared.k_full[s], &shared.k_empty[s]);
        copy(shared.v[s], maps.v, &shared.v_full[s], &shared.v_empty[s]);
      }
    }
    __syncwarp();
    queries.advance();
    if (task.b < 0) return;
  }
}

// --- consumer warpgroups -------------------------------------------------------------------------

template <int kHeadDim, class Sequences>
class Consumer {
 public:
  __device__ Consumer(const AttentionProblem& problem, const Sequences& sequences,
                      Shared<kHeadDim>& shared, int warpgroup)
      : problem_(problem),
        sequences_(sequences),
        shared_(shared),
        warpgroup_(warpgroup),
        warp_row_(warp_id() * kChainGroup % kTileRows) {}

  __device__ void run(const CUtensorMap& map, const ResultRows& out, const ResultRows& lse) {
    Ring<1> queries;
    while (true) {
      barrier_wait(&shared_.q_full, queries.parity);
      queries.advance();
      b_ = uniform(shared_.task.b);
      if (b_ < 0) break;
      const int first = uniform(shared_.task.first), last = uniform(shared_.task.last);
      const Item& item = shared_.task.items[warpgroup_];
      item_ = {uniform(item.head), uniform(item.query), uniform(item.first), uniform(item.last),
               uniform(item.clear)};
      pass_over(item_.last > 0 ? item_.first - first : last - first);
      if (item_.last == 0) {
        release(&shared_.q_empty);
        continue;
      }
      find_rows();
      multiply();
      if constexpr (Sequences::kIsCached) {
        store_rows(out);
      } else {
        store(map, lse);
      }
      pass_over(last - item_.last);
    }
    if (!Sequences::kIsCached && lane_id() == 0) store_wait_all();
  }

 private:
  using Scores = SoftmaxRows::Scores;

  // --- stages ---

  /// Releases the stages of tiles that only other warpgroups need.
  __device__ void pass_over(int tiles) {
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, k_.advance(), v_.advance()) {
      barrier_wait(&shared_.k_full[k_.stage], k_.parity);
      release(&shared_.k_empty[k_.stage]);
      barrier_wait(&shared_.v_full[v_.stage], v_.parity);
      release(&shared_.v_empty[v_.stage]);
    }
  }

  // --- an item ---

  __device__ void find_rows() {
    const auto sequence = sequences_.of(problem_, b_);
    end_ = sequence.length();
    rows_.begin(sequence, item_.query + warp_row_, end_);
#pragma unroll
    for (float& value : sum_) value = 0.0f;
#pragma unroll
    for (float& value : out_) value = 0.0f;
  }

  __device__ void multiply() {
    Scores scores;
    int stage = issue_scores(scores);
    wgmma_wait<0>();
    keep(scores);
    held_ = -1;
    for (int tile = item_.first;; ++tile) {
      release(&shared_.k_empty[stage]);
      const int key = tile * kTileRows;
      const bool is_last = tile + 1 == item_.last;
      if (is_last) release(&shared_.q_empty);
      const bool masked = key + kTileRows > item_.query + 1 || key < item_.clear;
      rows_.weigh(scores, key, masked, {problem_.factors.scale, problem_.factors.scale});
      wgmma_wait<0>();  // O of the previous tile
      take_over(scores);
      if (is_last) break;
      // A second array: issuing into `scores` would first move its values into the accumulators.
      Scores next;
      stage = issue_scores(next);
      issue_values(key);
      wgmma_wait<1>();
      keep(next);
#pragma unroll
      for (int i = 0; i < kTileRows / 2; ++i) scores[i] = next[i];
    }
    issue_values((item_.last - 1) * kTileRows);
    wgmma_wait<0>();
    keep(out_);
    keep(sum_);
    release(&shared_.v_empty[held_]);
  }

  // --- products ---

  /// Issues S of the next tile; returns its stage.
  __device__ int issue_scores(Scores& scores) {
    const int stage = uniform(k_.stage);
    barrier_wait(&shared_.k_full[stage], k_.parity);
    k_.advance();
    const std::uint64_t queries = operand_descriptor<false>(shared_.q[warpgroup_].blocks[0]);
    const std::uint64_t keys = operand_descriptor<false>(shared_.k[stage].blocks[0]);
    keep(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / kChainGroup; ++i) {
      const int block = i / (kSwizzleColumns / kChainGroup);
      const int step = i % (kSwizzleColumns / kChainGroup);
      const std::uint64_t offset =
          block * (sizeof(HeadTile<kSwizzleColumns>) >> 4) + kDescriptorStep<false> * step;
      wgmma_bf16<kTileRows, false, false>(scores, queries + offset, keys + offset, i > 0);
    }
    wgmma_commit();
    return stage;
  }
  /// Issues O += P V and l += P 1 for the tile in p_, whose keys start at `key`.
  __device__ void issue_values(int key) {
    held_ = uniform(v_.stage);
    barrier_wait(&shared_.v_full[held_], v_.parity);
    v_.advance();
    if (Sequences::kIsCached && key + kTileRows > end_) clear_rows(shared_.v[held_], end_ - key);
    const std::uint64_t values = operand_descriptor<true>(shared_.v[held_].blocks[0]);
    const std::uint64_t ones = operand_descriptor<false>(&shared_.ones);
    keep(out_);
    keep(sum_);
    keep(p_);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kValueSteps; ++i) {
      wgmma_bf16<kHeadDim, true>(out_, p_[i], values + kDescriptorStep<true> * i, true);
      wgmma_bf16<kSumColumns, false>(sum_, p_[i], ones, true);
    }
    wgmma_commit();
  }
  /// Zeros the rows of a tile from `first` on, for the products of this warpgroup. Other warpgroups
  /// that read the tile do the same.
  __device__ void clear_rows(HeadTile<kHeadDim>& tile, int first) const {
    constexpr int kPieces = kHeadDim / 8;
    for (int i = first * kPieces + static_cast<int>(threadIdx.x) % kWarpgroup;
         i < kTileRows * kPieces; i += kWarpgroup) {
      *reinterpret_cast<uint4*>(tile.piece(i / kPieces, i % kPieces)) = {};
    }
    async_fence();
    named_sync(1 + warpgroup_, kWarpgroup);
  }
  /// Precondition: the products of the previous tile are done. Multiplies O and l by
  /// alpha, and sets P to `weights`.
  __device__ void take_over(const Scores& weights) {
    keep(out_);
    keep(sum_);
    keep(p_);
    if (held_ >= 0) release(&shared_.v_empty[held_]);
    if (rows_.rescales()) {
#pragma unroll
      for (int i = 0; i < kSumColumns / 2; ++i) sum_[i] = sum_[i] * rows_.alpha(i / 2 % 2);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) out_[i] = out_[i] * rows_.alpha(i / 2 % 2);
    }
#pragma unroll
    for (int i = 0; i < kTileRows / 4; ++i) {
      p_[i / 4][i % 4] = pack_bf16(weights[2 * i], weights[2 * i + 1]);
    }
  }

  // --- results ---

  /// Stores the warp's 16 rows of out and lse, except positions past the sequence.
  __device__ void store(const CUtensorMap& map, const ResultRows& lse) {
    if (lane_id() == 0) store_wait_read<0>();
    __syncwarp();
    stage_rows(shared_.out[warpgroup_], warp_row_, out_, {sum_[0], sum_[2]});
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (fragment_column() != 0 || rows_.position(r) < 0) continue;
      lse.store(item_.head, problem_.token(b_, rows_.position(r)),
                rows_.maximum(r) + numerics::log2(sum_[2 * r]));
    }
    store_tile_rows(shared_.out[warpgroup_], warp_row_, &map, item_.head, item_.query, b_);
  }
  /// Stores the warp's 16 rows of out without a tensor map.
  __device__ void store_rows(const ResultRows& out) {
    constexpr int kPieces = kHeadDim / 8;
    __syncwarp();
    stage_rows(shared_.out[warpgroup_], warp_row_, out_, {sum_[0], sum_[2]});
    __syncwarp();
    const auto sequence = sequences_.of(problem_, b_);
    for (int i = lane_id(); i < kChainGroup * kPieces; i += kWarpSize) {
      const int row = warp_row_ + i / kPieces, piece = i % kPieces;
      if (item_.query + row >= end_) break;
      auto* to = static_cast<std::uint16_t*>(out.data) +
                 sequence.query_row(item_.query + row) * out.stride + item_.head * kHeadDim;
      reinterpret_cast<uint4*>(to)[piece] =
          *reinterpret_cast<const uint4*>(shared_.out[warpgroup_].piece(row, piece));
    }
  }

  const AttentionProblem& problem_;
  const Sequences& sequences_;
  Shared<kHeadDim>& shared_;
  int warpgroup_, warp_row_;
  Ring<kStages> k_, v_;  ///< next stages to read
  int held_;             ///< stage of V that products in flight read; -1: none
  int b_, end_;          ///< sequence, and end of its positions
  Item item_;
  SoftmaxRows rows_;
  std::uint32_t p_[kValueSteps][4] = {};
  float out_[kHeadDim / 2];
  float sum_[kSumColumns / 2];  ///< element i is in row i / 2
};

template <int kHeadDim, class Sequences>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_wgmma_kernel(const __grid_constant__ Maps maps,
                                   const __grid_constant__ AttentionProblem problem,
                                   const __grid_constant__ Sequences sequences,
                                   const __grid_constant__ ResultRows out,
                                   const __grid_constant__ ResultRows lse, unsigned* next,
                                   std::uint32_t* faults) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = held_shared<Shared<kHeadDim>>(memory);
  if (threadIdx.x == 0) {
    barrier_init(&shared.q_full, 1);
    barrier_init(&shared.q_empty, kConsumerWarps);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&shared.k_full[s], 1);
      barrier_init(&shared.v_full[s], 1);
      barrier_init(&shared.k_empty[s], kConsumerWarps);
      barrier_init(&shared.v_empty[s], kConsumerWarps);
    }
    barrier_init_fence();
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.out}) prefetch_map(map);
  }
  auto* const ones = &shared.ones.rows[0][0];
  for (int i = threadIdx.x; i < kSumColumns * kSwizzleColumns; i += kThreads) ones[i] = 0x3F80;
  async_fence();
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == kConsumers) {
    lower_registers<kCopyRegisters>();
    if (threadIdx.x % kWarpgroup < kWarpSize) {
      copy_operands<kHeadDim>(maps, problem, sequences,
                              Tasks<Sequences, kConsumers>(problem, sequences, next, faults),
                              shared);
    }
  } else {
    raise_registers<kRegisters>();
    Consumer<kHeadDim, Sequences>(problem, sequences, shared, warpgroup).run(maps.out, out, lse);
  }
}

// --- host ---------------------------------------------------------------------------------------

template <int kHeadDim, class Sequences>
void launch(Context& context, const Maps& maps, const AttentionProblem& problem,
            const Sequences& sequences, const TensorView& out, const TensorView& lse) {
  constexpr int kMemory = static_cast<int>(sizeof(Shared<kHeadDim>));
  static_assert(kMemory <= 227 * 1024);
  const auto kernel = attention_forward_wgmma_kernel<kHeadDim, Sequences>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory),
        "attention_forward_wgmma");
  const int blocks =
      std::min(context.multiprocessors(), Tasks<Sequences, kConsumers>::count(problem, sequences));
  kernel<<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(
      maps, problem, sequences, result_rows(out), result_rows(lse), context.signals(),
      context.faults());
  check_launch("attention_forward_wgmma");
}

/// Precondition: fits_wgmma accepts the head dimension.
template <class Sequences>
void launch(Context& context, const Maps& maps, const AttentionProblem& problem,
            const Sequences& sequences, const TensorView& out, const TensorView& lse) {
  const auto run = problem.head_dim == 64 ? launch<64, Sequences> : launch<128, Sequences>;
  run(context, maps, problem, sequences, out, lse);
}

bool fits_wgmma(const AttentionProblem& problem, std::initializer_list<TensorView> tensors) {
  const auto is_bulk = [](const TensorView& view) {
    return view.dtype == DType::bf16 && has_bulk_rows(view);
  };
  return (problem.head_dim == 64 || problem.head_dim == 128) && problem.kv_tile == kTileRows &&
         std::all_of(tensors.begin(), tensors.end(), is_bulk);
}

}  // namespace

bool fits_wgmma(const ops::AttentionForward& op, const AttentionProblem& problem) {
  return fits_wgmma(problem, {op.q, op.k, op.v, op.out});
}

void attention_forward_wgmma(Context& context, const ops::AttentionForward& op,
                             const AttentionProblem& problem) {
  const auto map = [&](const TensorView& view, int box_rows) {
    return head_map(view, op.shape.sequence, op.shape.batch, box_rows);
  };
  launch(context,
         Maps{map(op.q, kTileRows), map(op.k, kTileRows), map(op.v, kTileRows),
              map(op.out, kChainGroup)},
         problem, PackedSequences{}, op.out, op.lse);
}

bool fits_wgmma(const TensorView& q, const TensorView& k_cache, const TensorView& v_cache,
                const TensorView& out, const AttentionProblem& problem) {
  return fits_wgmma(problem, {q, k_cache, v_cache, out});
}

void attention_cached_wgmma(Context& context, const TensorView& q, const TensorView& k_cache,
                            const TensorView& v_cache, const TensorView& out,
                            const AttentionProblem& problem, const NewTokens& tokens) {
  const auto of_tokens = [&](const TensorView& view) {
    return head_map(view, view.rows, 1, kTileRows);
  };
  const auto of_cache = [&](const TensorView& view) {
    return head_map(view, problem.sequence, problem.batch, kTileRows);
  };
  launch(context, Maps{of_tokens(q), of_cache(k_cache), of_cache(v_cache), of_tokens(out)}, problem,
         CachedSequences{tokens}, out, TensorView{});
}

}  // namespace fp8lab::cuda
