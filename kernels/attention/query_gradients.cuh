// dQ on wgmma: blocks process tasks of 128 queries of a head one after another
// (attention_backward_wgmma.cu).
#pragma once

#include "kernels/attention/backward_tiles.cuh"
#include "kernels/attention/query_facts.cuh"

namespace fp8lab::cuda {

template <int kDim>
struct QueryShared {
  static constexpr int kStages = kDim == 128 ? 4 : 6;
  HeadTile<kDim> k[kStages], v[kStages];
  std::uint64_t full[kStages], empty[kStages];
};

/// Keys [first, last), first a multiple of 64, that the 64 queries from `query` on see. All queries
/// see all keys of [open, query), in whole tiles.
struct KeyTiles {
  int first = kNoQuery, open = kNoQuery, last = 0;

  __device__ KeyTiles(const AttentionProblem& problem, const FactsTable& table, int b, int head,
                      int query) {
    if (query >= problem.sequence) return;
    const QueryFacts& facts = *table.at(problem, b, head, query);
    first = facts.first_start / kTileRows * kTileRows;
    open = facts.last_start;
    last = min(query + kTileRows, problem.sequence);
  }
};

/// 128 queries of a head, and the tiles of keys that some of them see.
struct QueryTask {
  int b, head, query;
  int first, last;

  __device__ QueryTask(const AttentionProblem& problem, const FactsTable& table, int index) {
    const int tiles = (problem.sequence + kBlockTile - 1) / kBlockTile;
    head = index % problem.heads;
    index /= problem.heads;
    b = index % problem.batch;
    query = (tiles - 1 - index / problem.batch) * kBlockTile;
    first = kNoQuery;
    last = 0;
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) {
      const KeyTiles seen(problem, table, b, head, query + w * kTileRows);
      first = min(first, seen.first);
      last = max(last, seen.last);
    }
  }
};

/// The tasks of a block. Late queries have the most keys and come first. Every second round assigns
/// tasks in reverse order of blocks, which balances the work.
class QueryTasks {
 public:
  __device__ explicit QueryTasks(int count) : count_(count) {}
  __device__ bool done() const { return index() >= count_; }
  __device__ int index() const {
    const int blocks = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
    return round_ * blocks + (round_ % 2 == 0 ? own : blocks - 1 - own);
  }
  __device__ void next() { ++round_; }

 private:
  int count_, round_ = 0;
};

/// Precondition: one thread runs it.
template <int kDim>
__device__ void copy_keys(const AttentionProblem& problem, const BackwardMaps& maps,
                          const FactsTable& table, int count, QueryShared<kDim>& shared) {
  Ring<QueryShared<kDim>::kStages> ring;
  for (QueryTasks tasks(count); !tasks.done(); tasks.next()) {
    const QueryTask task(problem, table, tasks.index());
    const int kv_head = task.head / problem.group();
    for (int key = task.first; key < task.last; key += kTileRows, ring.advance()) {
      const int s = ring.stage;
      barrier_wait(&shared.empty[s], ring.parity ^ 1);
      barrier_expect(&shared.full[s], sizeof shared.k[s] + sizeof shared.v[s]);
      copy_tile(shared.k[s], &maps.k, &shared.full[s], kv_head, key, task.b);
      copy_tile(shared.v[s], &maps.v, &shared.full[s], kv_head, key, task.b);
    }
  }
}

/// Loads the A operands of the 64 rows of a head from `first` on, with zeros past the sequence.
template <int kDim>
__device__ __forceinline__ void load_rows(const AttentionProblem& problem,
                                          const OperandRows<std::uint16_t>& rows, int b, int head,
                                          int first, RowOperands<kDim>& operands) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = first + warpgroup_row() + 8 * r;
    const bool inside = position < problem.sequence;
    const std::int64_t token = problem.token(b, inside ? position : 0);
    const std::uint16_t* row = rows.data + token * rows.stride + head * kDim + fragment_column();
#pragma unroll
    for (int s = 0; s < kDim / kChainGroup; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* pair = reinterpret_cast<const std::uint32_t*>(row + s * kChainGroup + 8 * half);
        operands[s][2 * half + r] = inside ? *pair : 0u;
      }
    }
  }
}

/// Computes dQ of a warpgroup's 64 queries of each task.
template <int kDim>
class QueryGradients {
 public:
  using Sums = float[kDim / 2];

  __device__ QueryGradients(const AttentionProblem& problem, QueryShared<kDim>& shared)
      : problem_(problem), shared_(shared) {}

  /// Adds all tiles of the task to dq, for the queries from `query` on.
  __device__ __forceinline__ void run(const QueryTask& task, int query,
                                      const OperandRows<std::uint16_t>& q,
                                      const OperandRows<std::uint16_t>& dout,
                                      const FactsTable& table, Sums& dq) {
    const KeyTiles own(problem_, table, task.b, task.head, query);
    load_rows<kDim>(problem_, q, task.b, task.head, query, q_);
    load_rows<kDim>(problem_, dout, task.b, task.head, query, dout_);
    keep(q_);
    keep(dout_);
    if (query < problem_.sequence) {
      const QueryFacts& facts = *table.at(problem_, task.b, task.head, query);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        lse_[r] = facts.lse[warpgroup_row() + 8 * r];
        delta_[r] = facts.delta[warpgroup_row() + 8 * r];
      }
    }
    for (int key = task.first; key < task.last;) {
      if (own.open <= key && key < query) {
        add_open_tiles(query - key, dq);
        key = query;
        continue;
      }
      await_tile();
      if (own.first <= key && key < own.last) add_masked_tile(task.b, query, key, dq);
      release(&shared_.empty[ring_.stage]);
      ring_.advance();
      key += kTileRows;
    }
  }

 private:
  __device__ __forceinline__ void await_tile() {
    ring_.stage = uniform(ring_.stage);
    barrier_wait(&shared_.full[ring_.stage], ring_.parity);
  }
  __device__ __forceinline__ void issue_both(Scores& score, Scores& dprob) const {
    issue_scores<kDim>(score, q_, shared_.k[ring_.stage]);
    issue_scores<kDim>(dprob, dout_, shared_.v[ring_.stage]);
  }
  __device__ __forceinline__ void find_distances(Scores& score) const {
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      score[i] = numerics::score_distance(score[i], problem_.factors.scale, lse_[i / 2 % 2]);
    }
  }
  /// Replaces dprob by dS.
  __device__ __forceinline__ void score_gradients(const Scores& weight, Scores& dprob) const {
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      dprob[i] = weight[i] * (dprob[i] - delta_[i / 2 % 2]);
    }
  }

  /// Adds the next `keys` keys, in open tiles.
  __device__ __forceinline__ void add_open_tiles(int keys, Sums& dq) {
    int previous = -1;  // stage whose sums are in flight
    Weights ds;
    for (; keys > 0; keys -= kTileRows) {
      Scores score, dprob;
      await_tile();
      issue_both(score, dprob);
      wgmma_wait<2>();
      if (previous >= 0) {
        keep(ds);
        release(&shared_.empty[previous]);
      }
      wgmma_wait<1>();
      keep(score);
      find_distances(score);
      weigh(score);
      wgmma_wait<0>();
      keep(dprob);
      score_gradients(score, dprob);
      pack(dprob, ds);
      issue_sums<kDim>(dq, ds, shared_.k[ring_.stage]);
      previous = ring_.stage;
      ring_.advance();
    }
    wgmma_wait<0>();
    keep(dq);
    keep(ds);
    release(&shared_.empty[previous]);
  }

  /// Adds a masked tile. Each warp sums the groups in which one of its 16 queries sees a key.
  __device__ __forceinline__ void add_masked_tile(int b, int query, int key, Sums& dq) {
    Scores score, dprob;
    Weights ds;
    issue_both(score, dprob);
    const WarpQueries rows(PackedSequence{problem_, b}, query + warpgroup_row() - fragment_row());
    std::uint32_t visible = 0;
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      const bool sees = rows.sees(i / 2 % 2, key + fragment_column() + 8 * (i / 4) + i % 2);
      visible |= static_cast<std::uint32_t>(sees) << i;
    }
    wgmma_wait<0>();
    keep(score);
    keep(dprob);
    find_distances(score);
    mask(score, visible);  // others may have any value
    weigh(score);
    score_gradients(score, dprob);
    mask(dprob, visible);
    pack(dprob, ds);
    add_sums<kDim>(dq, ds, shared_.k[ring_.stage], rows.groups(key, key + kTileRows));
  }

  const AttentionProblem& problem_;
  QueryShared<kDim>& shared_;
  Ring<QueryShared<kDim>::kStages> ring_;
  RowOperands<kDim> q_, dout_;
  float lse_[2] = {}, delta_[2] = {};
};

template <int kDim>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    query_gradients_kernel(const __grid_constant__ AttentionProblem problem,
                           const __grid_constant__ BackwardMaps maps, OperandRows<std::uint16_t> q,
                           OperandRows<std::uint16_t> dout, FactsTable facts, ResultRows dq_rows,
                           int count) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = held_shared<QueryShared<kDim>>(memory);
  if (threadIdx.x == 0) {
    init_stages(shared.full, shared.empty);
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == kConsumers) {
    lower_registers<kCopyRegisters>();
    if (threadIdx.x % kWarpgroup == 0) copy_keys<kDim>(problem, maps, facts, count, shared);
  } else {
    raise_registers<kRegisters>();
    QueryGradients<kDim> gradients(problem, shared);
    for (QueryTasks tasks(count); !tasks.done(); tasks.next()) {
      const QueryTask task(problem, facts, tasks.index());
      const int query = task.query + warpgroup * kTileRows;
      float dq[kDim / 2] = {};
      gradients.run(task, query, q, dout, facts, dq);
      store_tile<kDim>(problem, task.b, task.head, query, dq, problem.factors.r, dq_rows);
    }
  }
}

}  // namespace fp8lab::cuda
