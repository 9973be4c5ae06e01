// Attention forward on E4M3 operands on the tensor cores of Hopper: a persistent kernel with wgmma
// and bulk copies. In the order of emulation/ops/attention/quantized_attention.hpp, for kv tiles of
// 64 keys with one scale each.
//
// Items, tasks and warpgroups are those of attention_forward_wgmma.cu. The tensor core reads FP8
// operands along the summed index alone, so a first kernel transposes v:
//
//   v: 64 keys by D columns of a head          a tile: D lines of 64 keys, in the 64-byte swizzle
//   +-----------------+                        +-----------+
//   | key 0:  d0 d1 . |   arrange_values       | d0: keys  |   16 keys of a line lie in the order
//   in | key 1:  d0 d1 . | ---------------------> | d1: keys  |   which a thread holds their
//   weights: |   ...           |                        |   ...     |   0 1 8 9, 2 3 10 11, 4 5 12
//   13, ...
//   +-----------------+                        +-----------+
//
// The sum of a group of 32 products does not depend on their order, so that P goes from the
// accumulators of S to the operand registers of P V without an exchange between threads.
//
//   producer warpgroup: Q, K by TMA, arranged V by plain copies, the scales of K and V by tile
//        |
//        v                                          for the kv tiles n of an item, ascending:
//   tensor core   | S(n) = Q8 K8(n)^T | A = P8(n-1) V8(n-1), a = P8(n-1) 1 |     | S(n+1) ...
//   CUDA cores                        | m', alpha, P(n) = 2^(m' - f S(n)) |     |
//                                                 O = O + sv(n-1) A, l = l + a, O, l *= alpha,
//                                                 P8(n) = code of P(n) / sp
//   out = O * (1 / l): shared memory, TMA; lse = m + log2(l sp)
//
// A and a are sums of one tile from zero; O and l take them in FP32.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/attention/forward_tasks.cuh"
#include "kernels/attention/head_tile.cuh"
#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/quantized_forward.cuh"
#include "kernels/quantize/operand_lines.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kGroups = kTileRows / kFp8Group;  ///< of the keys of a tile
constexpr int kSumColumns = 8;  ///< of l, all equal: the fewest that an instruction computes
constexpr int kTileLine = kTileRows;
constexpr int kPiece = 16;  ///< keys in the order of the fragment; bytes of a piece of a line
constexpr int kWord = 4;    ///< codes of a register
constexpr std::uint8_t kOne = 0x38;
constexpr int kPower = 8;  ///< P is cast with the scale 2^-kPower
constexpr float kScale = 0x1p-8f;

/// How a head is computed. The accumulators of 128 columns need so many registers that a
/// multiprocessor, which has 65536, has room for two consumer warpgroups.
template <int kHeadDim>
struct Blocks {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarpSize;
  static constexpr int kCopyRegisters = kHeadDim == 64 ? 32 : 24;
  static constexpr int kRegisters = kHeadDim == 64 ? 160 : 240;
};

// --- v as the tensor core reads it ---------------------------------------------------------------

/// The first byte of the tile of a key-value head. Its line d begins at byte kTileLine * d.
__host__ __device__ std::size_t arranged_tile(const AttentionProblem& problem, int b, int tile,
                                              int kv_head) {
  const std::size_t index =
      (static_cast<std::size_t>(b) * problem.tiles() + tile) * problem.kv_heads + kv_head;
  return index * problem.head_dim * kTileLine;
}

/// True if one of four codes is not finite.
__device__ bool has_special(std::uint32_t codes) {
  const std::uint32_t magnitudes = codes & 0x7F7F7F7Fu;
  return ((magnitudes + 0x01010101u) & 0x80808080u) != 0;
}

/// A thread arranges 16 keys of four columns; keys past the sequence become zeros.
__global__ void __launch_bounds__(kAttentionThreads)
    quantized_arrange_values(const __grid_constant__ AttentionProblem problem,
                             const std::uint8_t* v, std::int64_t stride, unsigned char* arranged,
                             std::uint32_t* special) {
  const int words = problem.head_dim / kWord;
  const std::int64_t units = std::int64_t{problem.batch} * problem.tiles() * (kTileRows / kPiece) *
                             problem.kv_heads * words;
  const std::int64_t unit = std::int64_t{blockIdx.x} * kAttentionThreads + threadIdx.x;
  if (unit >= units) return;
  const int word = static_cast<int>(unit % words);
  std::int64_t rest = unit / words;
  const int kv_head = static_cast<int>(rest % problem.kv_heads);
  rest /= problem.kv_heads;
  const int piece = static_cast<int>(rest % (kTileRows / kPiece));
  rest /= kTileRows / kPiece;
  const int tile = static_cast<int>(rest % problem.tiles());
  const int b = static_cast<int>(rest / problem.tiles());

  const int first = tile * kTileRows + piece * kPiece;
  const std::uint8_t* column = v + kv_head * problem.head_dim + word * kWord;
  std::uint32_t lines[kWord][kWord];  // [column][group of four keys]
  bool found = false;
#pragma unroll
  for (int t = 0; t < kWord; ++t) {
    std::uint32_t keys[kWord];
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      const int key = first + 2 * t + i % 2 + 8 * (i / 2);
      keys[i] = 0;
      if (key < problem.sequence) {
        keys[i] = *reinterpret_cast<const std::uint32_t*>(column + problem.token(b, key) * stride);
      }
      found = found || has_special(keys[i]);
    }
    turn(keys);
#pragma unroll
    for (int i = 0; i < kWord; ++i) lines[i][t] = keys[i];
  }
  unsigned char* to = arranged + arranged_tile(problem, b, tile, kv_head);
#pragma unroll
  for (int i = 0; i < kWord; ++i) {
    const unsigned line = static_cast<unsigned>(word * kWord + i);
    const unsigned at = line * kTileLine + (static_cast<unsigned>(piece) ^ line / 2 % 4) * kPiece;
    *reinterpret_cast<uint4*>(to + at) = {lines[i][0], lines[i][1], lines[i][2], lines[i][3]};
  }
  if (found) atomicOr(special, 1u);
}

// --- shared memory ------------------------------------------------------------------------------

/// 64 rows of codes of a head, a box in the swizzle of its lines.
template <int kHeadDim>
struct alignas(1024) CodeTile {
  unsigned char lines[kTileRows][kHeadDim];
};

/// An arranged tile of v.
template <int kHeadDim>
struct alignas(1024) ValueTile {
  unsigned char lines[kHeadDim][kTileLine];
};

/// Lines of ones: the operand whose product with P8 is its sum.
struct alignas(1024) Ones {
  std::uint8_t lines[kSumColumns][kTileLine];
};

template <int kHeadDim>
struct Shared {
  static constexpr int kConsumers = Blocks<kHeadDim>::kConsumers;
  CodeTile<kHeadDim> q[kConsumers];
  CodeTile<kHeadDim> k[kStages];
  ValueTile<kHeadDim> v[kStages];
  HeadTile<kHeadDim> out[kConsumers];
  Ones ones;
  float k_scale[kStages], v_scale[kStages];
  Task<kConsumers> task;
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[kStages], k_empty[kStages];
  std::uint64_t v_full[kStages], v_empty[kStages];
};

/// Maps of (column, position, sequence): q and k with boxes of a head by 64 positions, out with
/// boxes of 64 columns by the 16 positions of a warp.
struct Maps {
  CUtensorMap q, k, out;
};

struct Operands {
  HeadScales q_scales, k_scales, v_scales;
  const unsigned char* v;        ///< arranged
  const std::uint32_t* special;  ///< not 0: v has codes that are not finite
};

// --- producer warpgroup --------------------------------------------------------------------------

/// Precondition: one warp runs it. Its first lane issues the copies.
template <int kHeadDim>
__device__ void copy_operands(const Maps& maps, const AttentionProblem& problem,
                              const Operands& operands,
                              const Tasks<PackedSequences, Blocks<kHeadDim>::kConsumers>& tasks,
                              Shared<kHeadDim>& shared) {
  constexpr int kConsumers = Blocks<kHeadDim>::kConsumers;
  constexpr int kBytes = kTileRows * kHeadDim;
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
        copy_box(shared.q[c].lines, &maps.q, &shared.q_full, item.head * kHeadDim, item.query,
                 task.b);
      }
    }
    __syncwarp();
    queries.advance();
    if (task.b < 0) return;
    float k_scale = 1.0f, v_scale = 1.0f;  // of tile `tile` + lane, once every 32 tiles
    for (int tile = task.first; tile < task.last; ++tile, ring.advance()) {
      const int offset = (tile - task.first) % kWarpSize;
      if (offset == 0) {
        const std::int64_t token =
            problem.token(task.b, min((tile + lane_id()) * kTileRows, problem.sequence - 1));
        k_scale = operands.k_scales(token, task.kv_head);
        v_scale = operands.v_scales(token, task.kv_head);
      }
      const float of_k = __shfl_sync(kAllLanes, k_scale, offset);
      const float of_v = __shfl_sync(kAllLanes, v_scale, offset);
      if (lane_id() == 0) {
        const int s = ring.stage;
        barrier_wait(&shared.k_empty[s], ring.parity ^ 1);
        shared.k_scale[s] = of_k;
        barrier_expect(&shared.k_full[s], kBytes);
        copy_box(shared.k[s].lines, &maps.k, &shared.k_full[s], task.kv_head * kHeadDim,
                 tile * kTileRows, task.b);
        barrier_wait(&shared.v_empty[s], ring.parity ^ 1);
        shared.v_scale[s] = of_v;
        barrier_expect(&shared.v_full[s], kBytes);
        copy_bytes(shared.v[s].lines,
                   operands.v + arranged_tile(problem, task.b, tile, task.kv_head),
                   &shared.v_full[s], kBytes);
      }
      __syncwarp();
    }
  }
}

// --- consumer warpgroups -------------------------------------------------------------------------

template <int kHeadDim>
class Consumer {
 public:
  __device__ Consumer(const AttentionProblem& problem, const Operands& operands,
                      Shared<kHeadDim>& shared, int warpgroup)
      : problem_(problem),
        operands_(operands),
        shared_(shared),
        warpgroup_(warpgroup),
        warp_row_(warp_id() * kChainGroup % kTileRows) {}

  __device__ void run(const CUtensorMap& map, const ResultRows& lse) {
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
      store(map, lse);
      pass_over(last - item_.last);
    }
    if (lane_id() == 0) store_wait_all();
  }

 private:
  using Scores = SoftmaxRows::Scores;

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
    const PackedSequence sequence{problem_, b_};
    const int first = item_.query + warp_row_;
    rows_.begin(sequence, first, problem_.sequence);
    const bool inside = first < problem_.sequence;
    first_key_ = inside ? sequence.block_start(first) : first;
    last_key_ = inside ? min(first + kChainGroup, problem_.sequence) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = max(rows_.position(r), 0);
      q_scale_[r] = operands_.q_scales(problem_.token(b_, position), item_.head);
    }
#pragma unroll
    for (float& value : sum_) value = 0.0f;
#pragma unroll
    for (float& value : out_) value = 0.0f;
  }

  __device__ void multiply() {
    queries_ = descriptor_low(shared_.q[warpgroup_].lines);
    Scores scores;
    issue_scores(scores, take_keys());
    wgmma_wait<0>();
    keep(scores);
    release(&shared_.k_empty[k_held_]);
    weigh(item_.first, scores);
    take_weights(item_.first, scores);
    for (int tile = item_.first + 1; tile < item_.last; ++tile) {
      // A second array: issuing into `scores` would first move its values into the accumulators.
      Scores next;
      const std::uint32_t keys = take_keys(), values = take_values();
      issue_scores(next, keys);
      issue_values(values);
      wgmma_wait<1>();
      keep(next);
      release(&shared_.k_empty[k_held_]);
      weigh(tile, next);
      wgmma_wait<0>();
      take_sums();
      take_weights(tile, next);
    }
    release(&shared_.q_empty);
    issue_values(take_values());
    wgmma_wait<0>();
    take_sums();
  }

  __device__ void weigh(int tile, Scores& scores) {
    const int key = tile * kTileRows;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = q_scale_[r] * k_scale_ * problem_.factors.scale;
    rows_.weigh<kPower>(scores, key, key + kTileRows > item_.query + 1 || key < item_.clear,
                        factor);
  }

  // --- products ---

  /// Waits for the next tile of keys, and returns where it starts. Reads its scale.
  __device__ std::uint32_t take_keys() {
    k_held_ = uniform(k_.stage);
    barrier_wait(&shared_.k_full[k_held_], k_.parity);
    k_.advance();
    k_scale_ = shared_.k_scale[k_held_];
    return descriptor_low(shared_.k[0].lines) +
           k_held_ * static_cast<std::uint32_t>(sizeof(shared_.k[0]) >> 4);
  }
  __device__ std::uint32_t take_values() {
    v_held_ = uniform(v_.stage);
    barrier_wait(&shared_.v_full[v_held_], v_.parity);
    v_.advance();
    v_scale_ = shared_.v_scale[v_held_];
    return descriptor_low(shared_.v[0].lines) +
           v_held_ * static_cast<std::uint32_t>(sizeof(shared_.v[0]) >> 4);
  }
  __device__ void issue_scores(Scores& scores, std::uint32_t keys) {
    keep(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / kFp8Group; ++i) {
      const std::uint32_t offset = i * (kFp8Group >> 4);
      wgmma_e4m3(scores, line_descriptor<kHeadDim>(queries_ + offset),
                 line_descriptor<kHeadDim>(keys + offset), i > 0);
    }
    wgmma_commit();
  }
  /// Issues A = P8 V8 and a = P8 1 of the tile in p_.
  __device__ void issue_values(std::uint32_t values) {
    const std::uint32_t ones = descriptor_low(shared_.ones.lines);
    keep(tile_out_);
    keep(tile_sum_);
    keep(p_);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const std::uint32_t offset = i * (kFp8Group >> 4);
      wgmma_e4m3<kHeadDim>(tile_out_, p_[i], line_descriptor<kTileLine>(values + offset), i > 0);
      wgmma_e4m3<kSumColumns>(tile_sum_, p_[i], line_descriptor<kTileLine>(ones + offset), i > 0);
    }
    wgmma_commit();
  }
  /// Adds the products of a tile, which are done, to O and l, unless the warp sees no key of it.
  __device__ void take_sums() {
    keep(tile_out_);
    keep(tile_sum_);
    keep(p_);
    release(&shared_.v_empty[v_held_]);
    if (!sees_) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] = tile_sum_[2 * r] + sum_[r];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out_[i] = __fmaf_rn(tile_out_[i], v_scale_, out_[i]);
  }
  /// Multiplies O and l by alpha of the tile from `key` on, and sets P8 to the codes of its
  /// weights, which are 2^kPower times their values.
  __device__ void take_weights(int tile, const Scores& weights) {
    const int key = tile * kTileRows;
    sees_ = max(first_key_, key) < min(last_key_, key + kTileRows);
    if (sees_ && rows_.rescales()) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sum_[r] = sum_[r] * rows_.alpha(r);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) out_[i] = out_[i] * rows_.alpha(i / 2 % 2);
    }
#pragma unroll
    for (int i = 0; i < kTileRows / 2; i += 4) {
      // Elements i, i + 1 are of the upper row, i + 2, i + 3 of the lower one.
      const std::uint32_t upper = pair_of(weights[i], weights[i + 1]);
      const std::uint32_t lower = pair_of(weights[i + 2], weights[i + 3]);
      const int block = i / 4, half = block / 2 % 2;
      std::uint32_t(&registers)[4] = p_[block / 4];
      if (block % 2 == 0) {
        registers[2 * half] = upper;
        registers[2 * half + 1] = lower;
      } else {
        registers[2 * half] |= upper << 16;
        registers[2 * half + 1] |= lower << 16;
      }
    }
  }
  __device__ static std::uint32_t pair_of(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
  }

  // --- results ---

  /// Stores the warp's 16 rows of out and lse, except positions past the sequence.
  __device__ void store(const CUtensorMap& map, const ResultRows& lse) {
    if (lane_id() == 0) store_wait_read<0>();
    __syncwarp();
    HeadTile<kHeadDim>& tile = shared_.out[warpgroup_];
    stage_rows(tile, warp_row_, out_, sum_);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (fragment_column() != 0 || rows_.position(r) < 0) continue;
      lse.store(item_.head, problem_.token(b_, rows_.position(r)),
                rows_.maximum(r) + numerics::log2(sum_[r] * kScale));
    }
    store_tile_rows(tile, warp_row_, &map, item_.head, item_.query, b_);
  }

  const AttentionProblem& problem_;
  const Operands& operands_;
  Shared<kHeadDim>& shared_;
  int warpgroup_, warp_row_;
  Ring<kStages> k_, v_;    ///< next stages to read
  int tile_;               ///< the tile whose scores are next
  int k_held_, v_held_;    ///< stages of K and V that products read
  std::uint32_t queries_;  ///< start of the descriptor of Q
  int b_;
  Item item_;
  SoftmaxRows rows_;
  int first_key_, last_key_;  ///< the warp's queries see keys of [first_key_, last_key_)
  bool sees_;                 ///< one of the tile in p_
  float q_scale_[2], k_scale_, v_scale_;
  std::uint32_t p_[kGroups][4] = {};
  float out_[kHeadDim / 2], tile_out_[kHeadDim / 2];
  float sum_[2], tile_sum_[kSumColumns / 2];  ///< element i of the sums of a tile is in row i / 2
};

template <int kHeadDim>
__global__ void __launch_bounds__(Blocks<kHeadDim>::kThreads, 1)
    quantized_forward_wgmma_kernel(const __grid_constant__ Maps maps,
                                   const __grid_constant__ AttentionProblem problem,
                                   const __grid_constant__ Operands operands,
                                   const __grid_constant__ ResultRows lse, unsigned* next,
                                   std::uint32_t* faults) {
  using Block = Blocks<kHeadDim>;
  if (*operands.special != 0) return;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = held_shared<Shared<kHeadDim>>(memory);
  if (threadIdx.x == 0) {
    barrier_init(&shared.q_full, 1);
    barrier_init(&shared.q_empty, Block::kConsumerWarps);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&shared.k_full[s], 1);
      barrier_init(&shared.v_full[s], 1);
      barrier_init(&shared.k_empty[s], Block::kConsumerWarps);
      barrier_init(&shared.v_empty[s], Block::kConsumerWarps);
    }
    barrier_init_fence();
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.out}) prefetch_map(map);
  }
  auto* const ones = &shared.ones.lines[0][0];
  for (int i = threadIdx.x; i < kSumColumns * kTileLine; i += Block::kThreads) ones[i] = kOne;
  async_fence();
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == Block::kConsumers) {
    lower_registers<Block::kCopyRegisters>();
    if (threadIdx.x % kWarpgroup < kWarpSize) {
      const PackedSequences sequences{};
      copy_operands<kHeadDim>(
          maps, problem, operands,
          Tasks<PackedSequences, Block::kConsumers>(problem, sequences, next, faults), shared);
    }
  } else {
    raise_registers<Block::kRegisters>();
    Consumer<kHeadDim>(problem, operands, shared, warpgroup).run(maps.out, lse);
  }
}

// --- host ---------------------------------------------------------------------------------------

/// Returns the map of a tensor of codes with boxes of a head.
CUtensorMap code_map(const TensorView& view, const AttentionProblem& problem) {
  return tensor_map(
      view.data, 1,
      {{view.cols, 1, problem.head_dim},
       {problem.sequence, view.row_stride, kTileRows},
       {problem.batch, problem.sequence * view.row_stride, 1}},
      problem.head_dim == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <int kHeadDim>
void launch(Context& context, const Maps& maps, const AttentionProblem& problem,
            const Operands& operands, const ResultRows& lse) {
  constexpr int kMemory = static_cast<int>(sizeof(Shared<kHeadDim>));
  static_assert(kMemory <= 227 * 1024);
  const auto kernel = quantized_forward_wgmma_kernel<kHeadDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory),
        "quantized_forward_wgmma");
  const int blocks =
      std::min(context.multiprocessors(),
               Tasks<PackedSequences, Blocks<kHeadDim>::kConsumers>::count(problem, {}));
  kernel<<<static_cast<unsigned>(blocks), Blocks<kHeadDim>::kThreads, kMemory, context.stream()>>>(
      maps, problem, operands, lse, context.signals(), context.faults());
  check_launch("quantized_forward_wgmma");
}

/// True for codes that the conversion instruction makes, and wgmma reads.
bool is_e4m3(const QuantSpec& spec) { return spec.format == numerics::kE4M3; }

}  // namespace

bool fits_wgmma(const ops::QuantizedAttentionForward& op, const AttentionProblem& problem) {
  const AttentionShape& shape = op.shape;
  const bool p_fits = is_e4m3(op.p) && op.p.scale_source == ScaleSource::static_scale &&
                      op.p.rounding == numerics::Rounding::nearest && op.p.via == numerics::kFP32 &&
                      op.p.overflow == numerics::Overflow::saturate && op.p.static_scale == kScale;
  return p_fits && is_e4m3(op.q.spec) && is_e4m3(op.k.spec) && is_e4m3(op.v.spec) &&
         op.values == DType::bf16 && op.out.dtype == DType::bf16 &&
         has_one_scale_per_tile(op.k.spec, shape.sequence, shape.kv_tile) &&
         (problem.head_dim == 64 || problem.head_dim == 128) && problem.kv_tile == kTileRows &&
         has_bulk_rows(op.q.codes) && has_bulk_rows(op.k.codes) && has_bulk_rows(op.v.codes) &&
         has_bulk_rows(op.out);
}

std::size_t arranged_values_bytes(const AttentionProblem& problem) {
  return arranged_tile(problem, problem.batch, 0, 0);
}

void quantized_forward_wgmma(Context& context, const ops::QuantizedAttentionForward& op,
                             const AttentionProblem& problem, void* arranged,
                             std::uint32_t* special) {
  auto* const v = static_cast<unsigned char*>(arranged);
  check(cudaMemsetAsync(special, 0, sizeof *special, context.stream()), "cudaMemsetAsync");
  const auto units = static_cast<std::int64_t>(arranged_values_bytes(problem)) / (kPiece * kWord);
  launch_attention(context, "quantized_arrange_values", quantized_arrange_values,
                   (units + kAttentionThreads - 1) / kAttentionThreads, 0, problem,
                   static_cast<const std::uint8_t*>(op.v.codes.data), op.v.codes.row_stride, v,
                   special);
  const auto scales = [&](const QuantizedOperand& operand) {
    return quantized_rows<std::uint16_t>(operand, problem.head_dim).scales;
  };
  const Maps maps{code_map(op.q.codes, problem), code_map(op.k.codes, problem),
                  head_map(op.out, problem.sequence, problem.batch, kChainGroup)};
  const Operands operands{scales(op.q), scales(op.k), scales(op.v), v, special};
  const auto run = problem.head_dim == 64 ? launch<64> : launch<128>;
  run(context, maps, problem, operands, result_rows(op.lse));
}

}  // namespace fp8lab::cuda
