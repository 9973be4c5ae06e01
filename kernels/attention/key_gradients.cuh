// dK and dV on wgmma: a block computes 128 keys of a key-value head (attention_backward_wgmma.cu).
#pragma once

#include "kernels/attention/backward_tiles.cuh"
#include "kernels/attention/query_facts.cuh"

namespace fp8lab::cuda {

/// The queries of a stage, and the groups of 16 that each warpgroup sums.
struct QueryTile {
  int query;  ///< -1: no more stages
  unsigned groups[kConsumers];
};

template <int kDim>
struct KeyShared {
  static constexpr int kStages = kDim == 128 ? 4 : 6;
  HeadTile<kDim> k[kConsumers], v[kConsumers];
  HeadTile<kDim> q[kStages], dout[kStages];
  QueryFacts facts[kStages];
  QueryTile tiles[kStages];
  std::uint64_t keys, full[kStages], empty[kStages];
};

/// The keys of a block. Early tiles have the most queries and come first.
struct KeyTask {
  int b, kv_head, key;

  __device__ explicit KeyTask(const AttentionProblem& problem) {
    int rest = static_cast<int>(blockIdx.x);
    kv_head = rest % problem.kv_heads;
    rest /= problem.kv_heads;
    b = rest % problem.batch;
    key = rest / problem.batch * kBlockTile;
  }
};

/// Precondition: one warp runs it.
template <int kDim>
__device__ void copy_queries(const AttentionProblem& problem, const BackwardMaps& maps,
                             const FactsTable& facts, const KeyTask& task,
                             KeyShared<kDim>& shared) {
  if (lane_id() == 0) {
    barrier_expect(&shared.keys, sizeof shared.k + sizeof shared.v);
    for (int w = 0; w < kConsumers; ++w) {
      const int key = task.key + w * kTileRows;
      copy_tile(shared.k[w], &maps.k, &shared.keys, task.kv_head, key, task.b);
      copy_tile(shared.v[w], &maps.v, &shared.keys, task.kv_head, key, task.b);
    }
  }
  Ring<KeyShared<kDim>::kStages> ring;
  for (int i = 0; i < problem.group(); ++i) {
    const int head = task.kv_head * problem.group() + i;
    for (int query = first_query(problem, task.key); query < problem.sequence; query += kTileRows) {
      QueryTile tile{query, {}};
      unsigned any = 0;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        tile.groups[w] = query_groups(problem, task.b, query, task.key + w * kTileRows);
        any |= tile.groups[w];
      }
      if (any == 0) continue;
      if (lane_id() == 0) {
        const int s = ring.stage;
        barrier_wait(&shared.empty[s], ring.parity ^ 1);
        shared.tiles[s] = tile;
        barrier_expect(&shared.full[s],
                       sizeof shared.q[s] + sizeof shared.dout[s] + sizeof shared.facts[s]);
        copy_tile(shared.q[s], &maps.q, &shared.full[s], head, query, task.b);
        copy_tile(shared.dout[s], &maps.dout, &shared.full[s], head, query, task.b);
        copy_bytes(&shared.facts[s], facts.at(problem, task.b, head, query), &shared.full[s],
                   sizeof shared.facts[s]);
      }
      __syncwarp();
      ring.advance();
    }
  }
  if (lane_id() == 0) {
    barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
    shared.tiles[ring.stage].query = -1;
    barrier_arrive(&shared.full[ring.stage]);
  }
}

/// Computes dK and dV of a warpgroup's 64 keys.
template <int kDim>
class KeyGradients {
 public:
  using Sums = float[kDim / 2];

  __device__ KeyGradients(const AttentionProblem& problem, KeyShared<kDim>& shared, int key,
                          int warpgroup)
      : scale_(problem.factors.scale),
        sequence_(problem.sequence),
        shared_(shared),
        key_(key),
        warpgroup_(warpgroup) {}

  /// Adds all tiles to dk and dv.
  __device__ __forceinline__ void run(Sums& dk, Sums& dv) {
    barrier_wait(&shared_.keys, 0);
    while (await_tile()) {
      if (groups_ == 0) {
        release(&shared_.empty[ring_.stage]);
        ring_.advance();
      } else if (open()) {
        add_open_tiles(dk, dv);
      } else {
        add_masked_tile(dk, dv);
      }
    }
  }

 private:
  /// Waits for the next stage. Returns false if there is none.
  __device__ __forceinline__ bool await_tile() {
    ring_.stage = uniform(ring_.stage);
    barrier_wait(&shared_.full[ring_.stage], ring_.parity);
    query_ = uniform(shared_.tiles[ring_.stage].query);
    groups_ = static_cast<unsigned>(
        uniform(static_cast<int>(shared_.tiles[ring_.stage].groups[warpgroup_])));
    return query_ >= 0;
  }
  /// Returns true if every query of the stage sees every key.
  __device__ __forceinline__ bool open() const {
    return query_ >= key_ + kTileRows && query_ + kTileRows <= sequence_ && groups_ != 0 &&
           uniform(shared_.facts[ring_.stage].last_start) <= key_;
  }

  __device__ __forceinline__ void issue_both(Scores& score, Scores& dprob) const {
    issue_scores<kDim>(score, shared_.k[warpgroup_], shared_.q[ring_.stage]);
    issue_scores<kDim>(dprob, shared_.v[warpgroup_], shared_.dout[ring_.stage]);
  }

  /// Replaces the scores by their distances below lse.
  __device__ __forceinline__ void find_distances(Scores& score) const {
    const float* lse = shared_.facts[ring_.stage].lse + fragment_column();
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
      const float2 of = *reinterpret_cast<const float2*>(lse + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = score[4 * n + i];
        s = numerics::score_distance(s, scale_, i % 2 == 0 ? of.x : of.y);
      }
    }
  }
  /// Replaces dprob by dS.
  __device__ __forceinline__ void score_gradients(const Scores& weight, Scores& dprob) const {
    const float* delta = shared_.facts[ring_.stage].delta + fragment_column();
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
      const float2 of = *reinterpret_cast<const float2*>(delta + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dprob[4 * n + i] = weight[4 * n + i] * (dprob[4 * n + i] - (i % 2 == 0 ? of.x : of.y));
      }
    }
  }

  /// Adds the current stage, and the following ones while they are open too.
  __device__ __forceinline__ void add_open_tiles(Sums& dk, Sums& dv) {
    do {
      Scores score, dprob;
      Weights p, ds;
      issue_both(score, dprob);
      wgmma_wait<1>();
      keep(score);
      find_distances(score);
      weigh(score);
      wgmma_wait<0>();
      keep(dprob);
      pack(score, p);
      score_gradients(score, dprob);
      pack(dprob, ds);
      issue_sums<kDim>(dv, p, shared_.dout[ring_.stage]);
      issue_sums<kDim>(dk, ds, shared_.q[ring_.stage]);
      wgmma_wait<0>();
      keep(dk);
      keep(dv);
      keep(p);
      keep(ds);
      release(&shared_.empty[ring_.stage]);
      ring_.advance();
    } while (await_tile() && open());
  }

  __device__ __forceinline__ void add_masked_tile(Sums& dk, Sums& dv) {
    Scores score, dprob;
    Weights operands;
    issue_both(score, dprob);
    const std::uint32_t visible = visible_pairs();
    wgmma_wait<0>();
    keep(score);
    keep(dprob);
    find_distances(score);
    mask(score, visible);  // others may have any value
    weigh(score);
    mask(score, visible);
    score_gradients(score, dprob);
    mask(dprob, visible);
    pack(score, operands);
    add_sums<kDim>(dv, operands, shared_.dout[ring_.stage], groups_);
    pack(dprob, operands);
    add_sums<kDim>(dk, operands, shared_.q[ring_.stage], groups_);
    release(&shared_.empty[ring_.stage]);
    ring_.advance();
  }

  __device__ __forceinline__ std::uint32_t visible_pairs() const {
    const int* start = shared_.facts[ring_.stage].start + fragment_column();
    std::uint32_t visible = 0;
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      const int query = 8 * (i / 4) + i % 2;
      const int key = key_ + warpgroup_row() + 8 * (i / 2 % 2);
      const bool sees = start[query] <= key && key <= query_ + fragment_column() + query;
      visible |= static_cast<std::uint32_t>(sees) << i;
    }
    return visible;
  }

  float scale_;
  int sequence_;
  KeyShared<kDim>& shared_;
  int key_, warpgroup_;
  Ring<KeyShared<kDim>::kStages> ring_;
  int query_ = 0;        ///< first query of the stage
  unsigned groups_ = 0;  ///< of the stage, for this warpgroup
};

template <int kDim>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    key_gradients_kernel(const __grid_constant__ AttentionProblem problem,
                         const __grid_constant__ BackwardMaps maps, FactsTable facts,
                         ResultRows dk_rows, ResultRows dv_rows) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = held_shared<KeyShared<kDim>>(memory);
  if (threadIdx.x == 0) {
    barrier_init(&shared.keys, 1);
    init_stages(shared.full, shared.empty);
    barrier_init_fence();
  }
  __syncthreads();
  const KeyTask task(problem);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == kConsumers) {
    lower_registers<kCopyRegisters>();
    if (warp_id() == kConsumers * kWarpgroup / kWarpSize) {
      copy_queries<kDim>(problem, maps, facts, task, shared);
    }
  } else {
    raise_registers<kRegisters>();
    const int key = task.key + warpgroup * kTileRows;
    float dk[kDim / 2] = {}, dv[kDim / 2] = {};
    KeyGradients<kDim>(problem, shared, key, warpgroup).run(dk, dv);
    store_tile<kDim>(problem, task.b, task.kv_head, key, dk, problem.factors.r, dk_rows);
    store_tile<kDim>(problem, task.b, task.kv_head, key, dv, 1.0f, dv_rows);
  }
}

}  // namespace fp8lab::cuda
