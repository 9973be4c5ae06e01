// Attention backward on wgmma: heads of D = 64 or 128 columns in bf16, in the order of
// emulation/ops/attention.hpp. Every result belongs to one warpgroup.
//
//   query_facts_kernel      lse, delta = tree_sum(dout * out) and document start of 64 queries of a
//                           head in one record; four threads a query
//   key_gradients_kernel    dK, dV: a block has 128 keys of a kv head, 64 for each of its two
//                           consumer warpgroups; query heads of the group ascending, tiles of 64
//                           queries ascending
//   query_gradients_kernel  dQ: 128 queries of a head likewise; tiles of 64 keys ascending. Each
//                           block takes several tasks one after the other
//
//   producer warpgroup                    shared memory                      consumer warpgroups
//   one warp: which tiles are     +----------------------------+
//   seen; one thread: TMA         | keys:    K 2 x 64, V 2 x 64|  once       A operands
//        |                        +----------------------------+
//        +----------------------> | stage s: Q 64, dO 64, facts|  ring of    B operands, both ways
//        |                        |          which pairs       |  kStages    round: rows x D for
//        |   full[s]: arrived     +----------------------------+             the scores, D x rows
//        |   empty[s]: every      for dQ a stage holds K 64, V 64; Q and     for the sums
//        |   consumer warp has    dO are A operands in registers
//        |   read it
//
//   A tile is D / 64 blocks of 64 rows by 64 columns in the 128-byte swizzle: K-contiguous for
//   products over D, with contiguous rows for products over queries or keys.
//
//   A warpgroup's tile of 64 keys by 64 queries, transposed (rows are keys), in registers:
//     S^T = chain(0; K, Q^T), dP^T = chain(0; V, dO^T)     issued together
//     P = 2^(S * scale - lse)                              while dP^T is under way
//     dS = P * (dP - delta)
//     dV = chain(dV; P^T, dO), dK = chain(dK; dS^T, Q)     issued together
//   The fragment of S^T is that of the A operand P^T, rounded: nothing goes through shared memory.
//   While one warpgroup is between its products, those of the other run. For dQ rows are queries,
//   and dS K, the only sum, is still under way when the next tile's scores are issued.
//
// Open tiles, all of whose pairs are visible, run in loops of their own. Masked ones are waited for
// one by one and summed with mma.sync, by groups of 16: those that the CPU leaves out are left out,
// in dK and dV for all 64 keys together, in dQ for the 16 queries of a warp. So the bits agree even
// where an operand is not finite.
#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/head_tile.cuh"
#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma_bf16.cuh"
#include "kernels/runtime/tensor_map.hpp"

#include <algorithm>
#include <limits>

namespace fp8lab::cuda {
namespace {

constexpr int kConsumers = 2;  ///< warpgroups with 64 keys or queries each
constexpr int kBlockTile = kConsumers * kTileRows;
constexpr int kBackwardThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kCopyRegisters = 24, kRegisters = 240;  ///< of a thread of the two kinds
constexpr int kGroups = kTileRows / kChainGroup;
constexpr int kNoQuery = std::numeric_limits<int>::max();

// --- facts of queries ---------------------------------------------------------------------------

/// What the gradients need of 64 consecutive queries of a head.
struct alignas(16) QueryFacts {
  float lse[kTileRows], delta[kTileRows];  ///< 0 past the sequence
  int start[kTileRows];                    ///< first key that is seen; kNoQuery past the sequence
  int first_start, last_start;             ///< the smallest and the largest of the sequence
};

/// Records by head, sequence and tile.
struct FactsTable {
  QueryFacts* data;

  __device__ QueryFacts* at(const AttentionProblem& problem, int b, int head, int query) const {
    const std::int64_t row = std::int64_t{head} * problem.batch + b;
    return data + row * problem.tiles() + query / kTileRows;
  }
};

constexpr int kFactsThreads = 4;  ///< of a query
constexpr int kLanesHeld = static_cast<int>(numerics::kLanes) / kFactsThreads;

/// Eight consecutive elements at a multiple of 16 bytes.
__device__ inline void load_eight(const std::uint16_t* from, float (&values)[kLanesHeld]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void load_eight(const float* from, float (&values)[kLanesHeld]) {
  std::memcpy(values, __builtin_assume_aligned(from, 16), sizeof values);
}

/// tree_sum of kDim products by the four threads of a query, of which `part` is one: lanes 8 part
/// .. 8 part + 7 of numerics::chunk_sum are its own. All four return the sum.
template <int kDim, class Out>
__device__ float row_delta(const std::uint16_t* dout, const Out* out, int part) {
  float lane[kLanesHeld] = {};
#pragma unroll
  for (int first = 0; first < kDim; first += static_cast<int>(numerics::kLanes)) {
    float x[kLanesHeld], y[kLanesHeld];
    load_eight(dout + first + kLanesHeld * part, x);
    load_eight(out + first + kLanesHeld * part, y);
#pragma unroll
    for (int i = 0; i < kLanesHeld; ++i) lane[i] += x[i] * y[i];
  }
  // Lanes 16 and 8 apart are of threads 2 and 1 apart; both add the same two numbers.
#pragma unroll
  for (int span = kFactsThreads / 2; span > 0; span /= 2) {
#pragma unroll
    for (int i = 0; i < kLanesHeld; ++i) lane[i] += __shfl_xor_sync(kAllLanes, lane[i], span);
  }
#pragma unroll
  for (int span = kLanesHeld / 2; span > 0; span /= 2) {
#pragma unroll
    for (int i = 0; i < span; ++i) lane[i] += lane[i + span];
  }
  return lane[0];
}

/// A block for each record.
template <int kDim, class Out>
__global__ void __launch_bounds__(kTileRows* kFactsThreads)
    query_facts_kernel(AttentionProblem problem, OperandRows<std::uint16_t> dout,
                       OperandRows<Out> out, ResultRows lse, FactsTable table) {
  __shared__ int first_start, last_start;
  int rest = static_cast<int>(blockIdx.x);
  const int head = rest % problem.heads;
  rest /= problem.heads;
  const int b = rest % problem.batch;
  const int query = rest / problem.batch * kTileRows;
  const int row = static_cast<int>(threadIdx.x) / kFactsThreads;
  const int part = static_cast<int>(threadIdx.x) % kFactsThreads;
  if (threadIdx.x == 0) {
    first_start = kNoQuery;
    last_start = 0;
  }
  __syncthreads();
  const bool inside = query + row < problem.sequence;
  const std::int64_t token = problem.token(b, inside ? query + row : query);
  const float delta = row_delta<kDim>(dout.data + token * dout.stride + head * kDim,
                                      out.data + token * out.stride + head * kDim, part);
  QueryFacts& facts = *table.at(problem, b, head, query);
  if (part == 0) {
    const int start = inside ? problem.start(b, query + row) : kNoQuery;
    facts.lse[row] = inside ? lse.load(head, token) : 0.0f;
    facts.delta[row] = inside ? delta : 0.0f;
    facts.start[row] = start;
    atomicMin(&first_start, start);
    if (inside) atomicMax(&last_start, start);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    facts.first_start = first_start;
    facts.last_start = last_start;
  }
}

// --- tiles and products -------------------------------------------------------------------------

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};

/// A thread's part of 64 x 64 scores: element 4 n + 2 r + e lies in row `row` + 8 r and column
/// `column` + 8 n + e, with row 16 (warp % 4) + fragment_row() and column fragment_column().
using Scores = float[kTileRows / 2];
/// The same of 64 x 64 bf16 as A operands of the sums, for each group of 16 columns.
using Weights = std::uint32_t[kGroups][4];
/// Of 64 rows by kDim bf16 as A operands of the scores.
template <int kDim>
using Rows = std::uint32_t[kDim / kChainGroup][4];

/// The thread's first row of its warpgroup's 64.
__device__ inline int warpgroup_row() {
  return warp_id() % (kWarpgroup / kWarpSize) * kChainGroup + fragment_row();
}

/// What moves a K-contiguous descriptor from the first to the columns [16 s, 16 s + 16).
__device__ constexpr std::uint64_t column_step(int s) {
  constexpr int kInBlock = kSwizzleColumns / kChainGroup;
  return s / kInBlock * (sizeof(HeadTile<kSwizzleColumns>) >> 4) +
         s % kInBlock * kDescriptorStep<false>;
}

/// Issues scores = chain(0; a, b^T) over the columns of two tiles.
template <int kDim>
__device__ __forceinline__ void issue_scores(Scores& scores, const HeadTile<kDim>& a,
                                             const HeadTile<kDim>& b) {
  const std::uint64_t left = operand_descriptor<false>(&a), right = operand_descriptor<false>(&b);
  keep(scores);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kDim / kChainGroup; ++s) {
    wgmma_bf16<kTileRows, false, false>(scores, left + column_step(s), right + column_step(s),
                                        s > 0);
  }
  wgmma_commit();
}
template <int kDim>
__device__ __forceinline__ void issue_scores(Scores& scores, const Rows<kDim>& a,
                                             const HeadTile<kDim>& b) {
  const std::uint64_t right = operand_descriptor<false>(&b);
  keep(scores);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kDim / kChainGroup; ++s) {
    wgmma_bf16<kTileRows, false>(scores, a[s], right + column_step(s), s > 0);
  }
  wgmma_commit();
}

/// Issues sums = chain(sums; a, b) over the rows of the tile.
template <int kDim>
__device__ __forceinline__ void issue_sums(float (&sums)[kDim / 2], Weights& a,
                                           const HeadTile<kDim>& b) {
  const std::uint64_t right = operand_descriptor<true>(&b);
  keep(sums);
  keep(a);
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    wgmma_bf16<kDim, true>(sums, a[g], right + g * kDescriptorStep<true>, true);
  }
  wgmma_commit();
}

/// sums = chain(sums; a, b) over groups of 16 rows of the tile, by each warp for its own 16 rows.
template <int kDim>
__device__ __forceinline__ void add_sums(float (&sums)[kDim / 2], const Weights& a,
                                         const HeadTile<kDim>& b, unsigned groups) {
  const int r = lane_id() % 8, i = lane_id() / 8;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if ((groups >> g & 1u) == 0) continue;
    const int row = g * kChainGroup + r + 8 * (i % 2);
#pragma unroll
    for (int pair = 0; pair < kDim / kChainGroup; ++pair) {
      std::uint32_t right[4];
      load_matrices_transposed(
          b.piece(static_cast<unsigned>(row), static_cast<unsigned>(2 * pair + i / 2)), right);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float d[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) d[e] = sums[8 * pair + 4 * n + e];
        multiply_group(a[g], right[2 * n], right[2 * n + 1], d);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[8 * pair + 4 * n + e] = d[e];
      }
    }
  }
}

/// Rounds to operands.
__device__ __forceinline__ void pack(const Scores& values, Weights& operands) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      operands[g][i] = pack_bf16(values[8 * g + 2 * i], values[8 * g + 2 * i + 1]);
    }
  }
}

/// The weights of distances. Whole warp.
__device__ __forceinline__ void weigh(Scores& x) {
  constexpr int kTogether = 16;
#pragma unroll
  for (int first = 0; first < kTileRows / 2; first += kTogether) {
    // Numbers above zero are in the order of their bits, and so are those below, behind them.
    int farthest = 0;
    unsigned below = 0;
#pragma unroll
    for (int i = first; i < first + kTogether; i += 2) {
      farthest = __vimax3_s32(farthest, __float_as_int(x[i]), __float_as_int(x[i + 1]));
      below = __vimax3_u32(below, __float_as_uint(x[i]), __float_as_uint(x[i + 1]));
    }
    const bool normal =
        farthest <= __float_as_int(numerics::kNormalWeight) && below <= __float_as_uint(-0.5f);
    if (__all_sync(kAllLanes, normal)) {
#pragma unroll
      for (int i = first; i < first + kTogether; ++i)
        x[i] = numerics::normal_attention_weight(x[i]);
    } else {
#pragma unroll
      for (int i = first; i < first + kTogether; ++i) x[i] = numerics::attention_weight(x[i]);
    }
  }
}

/// Zeros where the bit of an element is not set.
__device__ __forceinline__ void mask(Scores& values, std::uint32_t visible) {
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    values[i] = (visible >> i & 1u) != 0 ? values[i] : 0.0f;
  }
}

/// Stores two neighbouring columns, the first of them even, of rows that are 16-byte aligned.
__device__ inline void store_pair(const ResultRows& result, std::int64_t row, int column,
                                  float first, float second) {
  const std::int64_t i = row * result.stride + column;
  if (result.bf16) {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(result.data) + i) =
        pack_bf16(first, second);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(result.data) + i) = {
        numerics::canonical_nan(first), numerics::canonical_nan(second)};
  }
}

/// Stores the warpgroup's 64 rows of a head from position `first` on, times `factor`.
template <int kDim>
__device__ void store_tile(const AttentionProblem& problem, int b, int head, int first,
                           const float (&sums)[kDim / 2], float factor, const ResultRows& result) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = first + warpgroup_row() + 8 * r;
    if (position >= problem.sequence) continue;
    const std::int64_t token = problem.token(b, position);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      store_pair(result, token, head * kDim + 8 * n + fragment_column(),
                 sums[4 * n + 2 * r] * factor, sums[4 * n + 2 * r + 1] * factor);
    }
  }
}

constexpr int kReleases = kConsumers * kWarpgroup / kWarpSize;

template <int kStages>
__device__ void init_stages(std::uint64_t (&full)[kStages], std::uint64_t (&empty)[kStages]) {
  for (int s = 0; s < kStages; ++s) {
    barrier_init(&full[s], 1);
    barrier_init(&empty[s], kReleases);
  }
}

// --- dK and dV ----------------------------------------------------------------------------------

/// The queries of a stage; the groups of 16 that each warpgroup sums.
struct QueryTile {
  int query;  ///< -1: no more
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

/// Keys of a block. Early tiles, with most queries, first.
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

/// One warp.
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

/// dK and dV of a warpgroup's 64 keys.
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

  /// Adds all tiles.
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
  /// Waits for the next stage. False: there is none.
  __device__ __forceinline__ bool await_tile() {
    ring_.stage = uniform(ring_.stage);
    barrier_wait(&shared_.full[ring_.stage], ring_.parity);
    query_ = uniform(shared_.tiles[ring_.stage].query);
    groups_ = static_cast<unsigned>(
        uniform(static_cast<int>(shared_.tiles[ring_.stage].groups[warpgroup_])));
    return query_ >= 0;
  }
  /// Does every query of the stage see every key?
  __device__ __forceinline__ bool open() const {
    return query_ >= key_ + kTileRows && query_ + kTileRows <= sequence_ && groups_ != 0 &&
           uniform(shared_.facts[ring_.stage].last_start) <= key_;
  }

  __device__ __forceinline__ void issue_both(Scores& score, Scores& dprob) const {
    issue_scores<kDim>(score, shared_.k[warpgroup_], shared_.q[ring_.stage]);
    issue_scores<kDim>(dprob, shared_.v[warpgroup_], shared_.dout[ring_.stage]);
  }

  /// Distances of the scores below lse.
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
  /// dprob = dS.
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

  /// The stage that is there, and those that follow it while they are open too.
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
    mask(score, visible);  // others may be of any size
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
  int query_ = 0;        ///< of the stage
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
    store_tile<kDim>(problem, task.b, task.kv_head, key, dk, problem.factors.inverse_root, dk_rows);
    store_tile<kDim>(problem, task.b, task.kv_head, key, dv, 1.0f, dv_rows);
  }
}

// --- dQ -----------------------------------------------------------------------------------------

template <int kDim>
struct QueryShared {
  static constexpr int kStages = kDim == 128 ? 4 : 6;
  HeadTile<kDim> k[kStages], v[kStages];
  std::uint64_t full[kStages], empty[kStages];
};

/// Tiles of keys [first, last), first a multiple of 64, that the 64 queries from `query` on see;
/// all of them see all keys of [open, query), in whole tiles.
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

/// 128 queries of a head and the tiles of keys that some of them see.
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

/// The tasks of a block. Late queries, with most keys, come first; every other round of the blocks
/// goes backwards, so that each gets as much.
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

/// One thread.
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

/// A operands of the 64 rows of a head from `first` on, zeros past the sequence.
template <int kDim>
__device__ __forceinline__ void load_rows(const AttentionProblem& problem,
                                          const OperandRows<std::uint16_t>& rows, int b, int head,
                                          int first, Rows<kDim>& operands) {
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

/// dQ of a warpgroup's 64 queries of each task.
template <int kDim>
class QueryGradients {
 public:
  using Sums = float[kDim / 2];

  __device__ QueryGradients(const AttentionProblem& problem, QueryShared<kDim>& shared)
      : problem_(problem), shared_(shared) {}

  /// Adds all tiles of the task to dq for the queries from `query` on.
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
  /// dprob = dS.
  __device__ __forceinline__ void score_gradients(const Scores& weight, Scores& dprob) const {
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      dprob[i] = weight[i] * (dprob[i] - delta_[i / 2 % 2]);
    }
  }

  /// The next tiles, of `keys` keys.
  __device__ __forceinline__ void add_open_tiles(int keys, Sums& dq) {
    int previous = -1;  // the stage whose sums are under way
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

  /// Each warp sums the groups in which one of its 16 queries sees a key.
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
    mask(score, visible);  // others may be of any size
    weigh(score);
    score_gradients(score, dprob);
    mask(dprob, visible);
    pack(dprob, ds);
    add_sums<kDim>(dq, ds, shared_.k[ring_.stage], rows.groups(key, key + kTileRows));
  }

  const AttentionProblem& problem_;
  QueryShared<kDim>& shared_;
  Ring<QueryShared<kDim>::kStages> ring_;
  Rows<kDim> q_, dout_;
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
      store_tile<kDim>(problem, task.b, task.head, query, dq, problem.factors.inverse_root,
                       dq_rows);
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

/// Boxes of 64 positions of one sequence by 64 columns.
CUtensorMap rows_map(const AttentionProblem& problem, const TensorView& view) {
  return tensor_map(view.data, 2,
                    {{view.cols, 1, kSwizzleColumns},
                     {problem.sequence, view.row_stride, kTileRows},
                     {problem.batch, problem.sequence * view.row_stride, 1}},
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

template <class... Parameters, class... Arguments>
void launch(Context& context, const char* name, void (*kernel)(Parameters...), std::int64_t blocks,
            std::size_t bytes, const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        name);
  kernel<<<static_cast<unsigned>(blocks), kBackwardThreads, bytes, context.stream()>>>(
      arguments...);
  check_launch(name);
}

template <int kDim, class Out>
void find_facts(Context& context, const ops::AttentionBackward& op, const AttentionProblem& problem,
                const FactsTable& facts) {
  const std::int64_t blocks = std::int64_t{problem.heads} * problem.batch * problem.tiles();
  query_facts_kernel<kDim, Out>
      <<<static_cast<unsigned>(blocks), kTileRows * kFactsThreads, 0, context.stream()>>>(
          problem, operand_rows<std::uint16_t>(op.dout), operand_rows<Out>(op.out),
          result_rows(op.lse), facts);
  check_launch("attention query facts");
}

template <int kDim>
void backward(Context& context, const ops::AttentionBackward& op, const AttentionProblem& problem,
              const FactsTable& facts) {
  if (op.out.dtype == DType::bf16) {
    find_facts<kDim, std::uint16_t>(context, op, problem, facts);
  } else {
    find_facts<kDim, float>(context, op, problem, facts);
  }
  const BackwardMaps maps{rows_map(problem, op.q), rows_map(problem, op.k), rows_map(problem, op.v),
                          rows_map(problem, op.dout)};
  const std::int64_t tiles = (problem.sequence + kBlockTile - 1) / kBlockTile * problem.batch;
  launch(context, "attention key gradients", key_gradients_kernel<kDim>, tiles * problem.kv_heads,
         sizeof(KeyShared<kDim>), problem, maps, facts, result_rows(op.dk), result_rows(op.dv));
  const std::int64_t tasks = tiles * problem.heads;
  launch(context, "attention query gradients", query_gradients_kernel<kDim>,
         std::min<std::int64_t>(tasks, context.multiprocessors()), sizeof(QueryShared<kDim>),
         problem, maps, operand_rows<std::uint16_t>(op.q), operand_rows<std::uint16_t>(op.dout),
         facts, result_rows(op.dq), static_cast<int>(tasks));
}

/// 16-byte aligned rows.
bool aligned(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return address % 16 == 0 && view.row_stride * size_of(view.dtype) % 16 == 0;
}

}  // namespace

bool fits_wgmma(const ops::AttentionBackward& op, const AttentionProblem& problem) {
  if (op.q.dtype != DType::bf16 || (problem.head_dim != 64 && problem.head_dim != 128)) {
    return false;
  }
  if (problem.kv_tile % kTileRows != 0 && problem.kv_tile < problem.sequence) return false;
  const TensorView* const views[] = {&op.q,    &op.k,  &op.v,  &op.out,
                                     &op.dout, &op.dq, &op.dk, &op.dv};
  return std::all_of(std::begin(views), std::end(views),
                     [](const TensorView* view) { return aligned(*view); });
}

std::size_t backward_wgmma_workspace(const AttentionShape& shape) {
  const std::int64_t tiles = (shape.sequence + kTileRows - 1) / kTileRows;
  return static_cast<std::size_t>(shape.heads * shape.batch * tiles) * sizeof(QueryFacts);
}

void attention_backward_wgmma(Context& context, const ops::AttentionBackward& op,
                              const AttentionProblem& problem, void* workspace) {
  const FactsTable facts{static_cast<QueryFacts*>(workspace)};
  if (problem.head_dim == 64) {
    backward<64>(context, op, problem, facts);
  } else {
    backward<128>(context, op, problem, facts);
  }
}

}  // namespace fp8lab::cuda
