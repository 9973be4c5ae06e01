#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/ptx.cuh"
#include "kernels/runtime/fault.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

/// Calls body(col, count) for the groups of columns of a row, distributed
/// over the threads of a block.
template <class Body>
__device__ void for_each_group_of_row(std::int64_t cols, const Body& body) {
  for (std::int64_t col = static_cast<std::int64_t>(threadIdx.x) * kGroup; col < cols;
       col += static_cast<std::int64_t>(blockDim.x) * kGroup) {
    body(col, cols - col < kGroup ? static_cast<int>(cols - col) : kGroup);
  }
}

// A cluster of blocks processes a row; each block has some chunks of its tree sum:
//
//   row t   | block 0: chunks 0 .. 4 | block 1: chunks 5 .. 9 | ...
//              |
//   registers  z, a thread has quads of four elements       the logits are read once
//              |-- extremes --> cluster --> maximum of the row
//   shared     exponentials, FP32
//              |-- a chunk to a warp --> cluster --> sum of the row
//   memory     gradient                                     and written once
//
// A row has at most kMostBlocks blocks, and a thread at most kMostQuads quads of it.
constexpr int kQuad = 4, kMostQuads = 12, kMostBlocks = 8;
constexpr unsigned kMostThreads = 1024;
/// Largest number of elements, in whole chunks, that a block's registers
/// and shared memory can hold.
constexpr std::int64_t kMostPart = kMostThreads * kMostQuads * kQuad;
static_assert(kMostPart % numerics::kSumChunk == 0);
constexpr int kMostChunks = static_cast<int>(kMostPart / numerics::kSumChunk);

template <class T>
struct alignas(kQuad * sizeof(T)) Quad {
  T of[kQuad];
};

/// Loads `count` elements starting at `source`; a partial quad repeats the first one. kWhole: all
/// four elements, aligned to the size of a quad.
template <bool kWhole, class T>
__device__ Quad<T> load_quad(const T* source, int count) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const Quad<T>*>(source);
  } else {
    Quad<T> quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad.of[i] = source[i < count ? i : 0];
    return quad;
  }
}

/// Rounds to T.
template <class T>
__device__ Quad<T> narrowed(const Quad<float>& values) {
  Quad<T> quad;
  if constexpr (sizeof(T) == 2) {
    const __nv_bfloat162 pairs[] = {__floats2bfloat162_rn(values.of[0], values.of[1]),
                                    __floats2bfloat162_rn(values.of[2], values.of[3])};
    std::memcpy(&quad, pairs, sizeof quad);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad.of[i] = narrow<T>(values.of[i]);
  }
  return quad;
}
template <bool kWhole, class T>
__device__ void store_quad(T* destination, int count, const Quad<float>& values) {
  const Quad<T> quad = narrowed<T>(values);
  if constexpr (kWhole) {
    *reinterpret_cast<Quad<T>*>(destination) = quad;
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (i < count) destination[i] = quad.of[i];
    }
  }
}

/// Returns the larger value; ignores a NaN in `value`.
__device__ float larger(float best, float value) { return value > best ? value : best; }
/// Returns the smaller value, or NaN if one is NaN.
__device__ float smaller_or_nan(float x, float y) { return x < y || x != x ? x : y; }

/// Largest and smallest element. `best` ignores NaN, `least` becomes NaN. The order of elements
/// affects only the sign of a zero, which no user sees.
struct Extremes {
  float best = kMinusInfinity, least = -kMinusInfinity;

  __device__ void add(const Extremes& other) {
    best = larger(best, other.best);
    least = smaller_or_nan(least, other.least);
  }
  /// Combines the extremes of all lanes of a warp.
  __device__ void add_lanes() {
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      add({__shfl_xor_sync(kAllLanes, best, span), __shfl_xor_sync(kAllLanes, least, span)});
    }
  }
};

/// The extremes of a thread's elements.
template <class T>
struct SeenElements {
  Extremes seen;
  __device__ void add(const Quad<T>& quad) {
#pragma unroll
    for (const T value : quad.of) seen.add({value, value});
  }
  __device__ Extremes extremes() const { return seen; }
};
/// The extremes of bf16 elements, in pairs.
template <>
struct SeenElements<std::uint16_t> {
  __nv_bfloat162 best = __float2bfloat162_rn(kMinusInfinity);
  __nv_bfloat162 least = __float2bfloat162_rn(-kMinusInfinity);

  __device__ void add(const Quad<std::uint16_t>& quad) {
    __nv_bfloat162 pairs[kQuad / 2];
    std::memcpy(pairs, &quad, sizeof pairs);
#pragma unroll
    for (const __nv_bfloat162 pair : pairs) {
      best = __hmax2(best, pair);
      least = __hmin2_nan(least, pair);
    }
  }
  __device__ Extremes extremes() const {
    return {larger(__low2float(best), __high2float(best)),
            smaller_or_nan(__low2float(least), __high2float(least))};
  }
};

struct TokenData {
  const std::int32_t* target;
  const float* weight;
  const float* scalars;
  float* loss;
  std::uint32_t* faults;
};

/// Shared memory of a block. The members that other blocks of the cluster read
/// precede the exponentials.
struct RowMemory {
  Extremes extremes;  ///< of this block's part
  float chunk_sums[kMostChunks];
  Extremes of_warp[kMostThreads / kWarpSize];
  Extremes of_row;
  float row_sum;
  alignas(16) float exponentials[1];  ///< as many as the part has elements
};

/// Computes exp2((z - m) * kLog2E); kShort: the exponent is in the range of exp2_normal.
template <bool kShort>
struct Exponential {
  float m;

  __device__ float operator()(float value) const {
    const float exponent = (value - m) * numerics::kLog2E;
    return kShort ? numerics::exp2_normal(exponent) : numerics::exp2(exponent);
  }
};

/// A block's part of a row. kWhole: it consists of whole, aligned quads.
template <class Z, class D, int kQuads, bool kWhole>
class RowPart {
 public:
  /// `part`: elements of row t for each block, in whole chunks. dlogits.data is null if
  /// only the loss is computed.
  __device__ RowPart(std::int64_t t, std::int64_t vocabulary, int part, int blocks,
                     const Rows<Z>& z, const Rows<D>& dlogits, RowMemory& memory)
      : first_(std::int64_t{cluster_rank()} * part),
        count_(
            static_cast<int>(max(min(vocabulary - first_, std::int64_t{part}), std::int64_t{0}))),
        chunks_(static_cast<int>((vocabulary + numerics::kSumChunk - 1) / numerics::kSumChunk)),
        chunks_of_block_(part / kChunk),
        blocks_(blocks),
        z_(z.at(t, first_)),
        dlogits_(dlogits.at(t, first_)),
        memory_(memory) {}

  __device__ void load() {
    for_each_quad([&](int quad, int at) { held_[quad] = load_quad<kWhole>(z_ + at, left(at)); });
  }

  /// Returns the extremes of the whole row.
  __device__ Extremes extremes() {
    SeenElements<Z> seen;
    for_each_quad([&](int quad, int) { seen.add(held_[quad]); });
    Extremes own = seen.extremes();
    own.add_lanes();
    if (lane_id() == 0) memory_.of_warp[warp_id()] = own;
    __syncthreads();
    if (warp_id() == 0) {
      own = lane_id() < warp_count() ? memory_.of_warp[lane_id()] : Extremes{};
      own.add_lanes();
      if (lane_id() == 0) memory_.extremes = own;
    }
    cluster_sync();
    if (warp_id() == 0) {
      own = {};
      if (lane_id() < blocks_) {
        own = {remote_float(&memory_.extremes.best, lane_id()),
               remote_float(&memory_.extremes.least, lane_id())};
      }
      own.add_lanes();
      if (lane_id() == 0) memory_.of_row = own;
    }
    __syncthreads();
    return memory_.of_row;
  }

  /// Returns the tree_sum of the row's exponentials, which stay in shared memory. Precondition: the
  /// caller calls `leave` afterwards.
  template <class Exponential>
  __device__ float sum(const Exponential& exponential) {
    for_each_quad([&](int quad, int at) {
      Quad<float> values;
#pragma unroll
      for (int i = 0; i < kQuad; ++i) values.of[i] = exponential(widen(held_[quad].of[i]));
      *reinterpret_cast<Quad<float>*>(memory_.exponentials + at) = values;
    });
    __syncthreads();
    for (int chunk = warp_id(); chunk < chunks_of_block_; chunk += warp_count()) {
      const float* values = memory_.exponentials + chunk * kChunk + lane_id();
      const int end = count_ - chunk * kChunk;  // of the row, relative to the chunk
      float lane = 0.0f;
      if (end >= kChunk) {
#pragma unroll 32
        for (int i = 0; i < kChunk; i += kWarpSize) lane += values[i];
      } else {
        for (int i = 0; i < end - lane_id(); i += kWarpSize) lane += values[i];
      }
      lane = combine_lanes(lane);
      if (lane_id() == 0) memory_.chunk_sums[chunk] = lane;
    }
    cluster_sync();
    // The chunk sums together fit into one chunk of the next level.
    static_assert(kMostBlocks * kMostChunks <= numerics::kSumChunk);
    if (warp_id() == 0) {
      float lane = 0.0f;
      for (int chunk = lane_id(); chunk < chunks_; chunk += kWarpSize) {
        lane +=
            remote_float(&memory_.chunk_sums[chunk % chunks_of_block_], chunk / chunks_of_block_);
      }
      lane = combine_lanes(lane);
      if (lane_id() == 0) memory_.row_sum = lane;
    }
    __syncthreads();
    cluster_arrive();
    return memory_.row_sum;
  }

  /// Waits at the end of a block: other blocks may still read its sums.
  __device__ static void leave() { cluster_wait(); }

  __device__ void write_gradient(float sum, std::int64_t target, float factor) const {
    const float inverse = 1.0f / sum;
    const bool has_target = target >= first_ && target - first_ < count_;
    const int here = has_target ? static_cast<int>(target - first_) : -kQuad;
    for_each_quad([&](int, int at) {
      Quad<float> values = *reinterpret_cast<const Quad<float>*>(memory_.exponentials + at);
#pragma unroll
      for (float& value : values.of) value = value * inverse;
      if (here - at >= 0 && here - at < kQuad) {
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          if (at + i == here) values.of[i] -= 1.0f;
        }
      }
#pragma unroll
      for (float& value : values.of) value = value * factor;
      store_quad<kWhole>(dlogits_ + at, left(at), values);
    });
  }
  __device__ void write_zeros() const {
    for_each_quad([&](int, int at) { store_quad<kWhole>(dlogits_ + at, left(at), {}); });
  }

 private:
  static constexpr int kChunk = static_cast<int>(numerics::kSumChunk);

  /// Calls body(quad, at) for each quad of this thread: its index, and its
  /// first element in the part.
  template <class Body>
  __device__ void for_each_quad(const Body& body) const {
    const int step = static_cast<int>(blockDim.x) * kQuad;
    const int first = static_cast<int>(threadIdx.x) * kQuad;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (first + quad * step < count_) body(quad, first + quad * step);
    }
  }
  /// Returns the number of elements of the quad at `at`.
  __device__ int left(int at) const { return min(count_ - at, kQuad); }

  std::int64_t first_;  ///< first column of the part
  int count_;           ///< elements of the part
  int chunks_;          ///< chunks of the row
  int chunks_of_block_, blocks_;
  const Z* z_;  ///< elements of the part
  D* dlogits_;
  RowMemory& memory_;
  Quad<Z> held_[kQuads];
};

/// Computes one token with each cluster of `blocks` blocks. dlogits may alias the logits: the whole
/// row is in registers before the cluster's first barrier, and the gradient is written after it.
template <class Z, class D, int kQuads, unsigned kThreads, bool kWhole>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    token_losses(std::int64_t vocabulary, int part, int blocks, const __grid_constant__ Rows<Z> z,
                 const __grid_constant__ TokenData token, const __grid_constant__ Rows<D> dlogits) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& memory = *reinterpret_cast<RowMemory*>(bytes);
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(blocks);
  const bool tells = cluster_rank() == 0 && threadIdx.x == 0;  // writes the loss
  const float weight = token.weight[t];
  const std::int64_t target = weight != 0.0f ? token.target[t] : 0;
  RowPart<Z, D, kQuads, kWhole> row(t, vocabulary, part, blocks, z, dlogits, memory);
  const bool outside = weight != 0.0f && (target < 0 || target >= vocabulary);
  if (weight == 0.0f || outside) {
    if (outside && tells) report(token.faults, Fault::target_outside_vocabulary);
    if (tells) token.loss[t] = 0.0f;
    if (dlogits.data != nullptr) row.write_zeros();
    return;
  }
  row.load();
  const float at_target = tells ? z.load(t, target) : 0.0f;
  const Extremes extremes = row.extremes();
  // False if an element is NaN or infinite: the exponent is then NaN or -inf.
  const bool short_range =
      (extremes.least - extremes.best) * numerics::kLog2E >= -numerics::kExp2Normal;
  const float sum = short_range ? row.sum(Exponential<true>{extremes.best})
                                : row.sum(Exponential<false>{extremes.best});
  if (tells) {
    const float below_maximum = extremes.best - at_target;
    const float nats = (numerics::log2(sum) + (below_maximum * numerics::kLog2E)) * numerics::kLn2;
    token.loss[t] = numerics::canonical_nan(nats * weight);
  }
  if (dlogits.data != nullptr) {
    row.write_gradient(sum, target, weight * token.scalars[StepScalar::kInverseTokens]);
  }
  row.leave();
}

/// Computes scalars[kLossSum] += tree_sum(loss) in one block.
__global__ void add_losses(std::int64_t tokens, const float* loss, float* scalars) {
  const float sum = block_tree_sum(tokens, [loss](std::int64_t t) { return loss[t]; });
  if (threadIdx.x == 0) {
    float& total = scalars[StepScalar::kLossSum];
    total = numerics::canonical_nan(total + sum);
  }
}

struct Candidate {
  float value;
  std::int64_t index;
};

/// Returns the better candidate: a later element replaces an earlier one only if it is greater. If
/// the first element is NaN, no element is greater; any other NaN is not greater than anything.
/// Each thread starts from the first element, so the order of comparisons does not matter.
__device__ Candidate better(const Candidate& a, const Candidate& b) {
  const bool b_wins = b.value > a.value || (b.value == a.value && b.index < a.index);
  return b_wins ? b : a;
}

/// Finds the argmax of one row with each block.
template <class Z>
__global__ void row_argmax(std::int64_t cols, Rows<Z> z, std::int32_t* out) {
  __shared__ Candidate warp_best[kWarpSize];
  const std::int64_t row = blockIdx.x;
  Candidate best{z.load(row, 0), 0};
  for_each_group_of_row(cols, [&](std::int64_t col, int count) {
    float values[kGroup];
    z.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) best = better(best, {values[i], col + i});
    }
  });
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    best = better(best, {__shfl_xor_sync(kAllLanes, best.value, span),
                         __shfl_xor_sync(kAllLanes, best.index, span)});
  }
  if (lane_id() == 0) warp_best[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < warp_count(); ++warp) best = better(best, warp_best[warp]);
  out[row] = static_cast<std::int32_t>(best.index);
}

template <class Z, class D, int kQuads, unsigned kThreads>
void launch_rows(Context& context, std::int64_t rows, std::int64_t vocabulary, int blocks,
                 const Rows<Z>& z, const TokenData& token, const Rows<D>& dlogits) {
  const std::int64_t chunks = (vocabulary + numerics::kSumChunk - 1) / numerics::kSumChunk;
  const auto part = static_cast<int>((chunks + blocks - 1) / blocks * numerics::kSumChunk);
  const std::int64_t held = std::min<std::int64_t>(part, vocabulary);  // of the fullest block
  const std::int64_t quads = (held + kQuad - 1) / kQuad;
  const std::int64_t warps = (quads + kWarpSize - 1) / kWarpSize;
  const auto threads = static_cast<unsigned>(
      std::min<std::int64_t>((warps + kQuads - 1) / kQuads * kWarpSize, kThreads));
  const std::size_t bytes =
      offsetof(RowMemory, exponentials) + static_cast<std::size_t>(quads) * sizeof(Quad<float>);
  const bool whole = z.wide && dlogits.wide && vocabulary % kQuad == 0;
  const auto kernel = whole ? token_losses<Z, D, kQuads, kThreads, true>
                            : token_losses<Z, D, kQuads, kThreads, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cross_entropy: shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(rows * blocks), 1, 1};
  config.blockDim = {threads, 1, 1};
  config.dynamicSmemBytes = bytes;
  config.stream = context.stream();
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, vocabulary, part, blocks, z, token, dlogits),
        "cross_entropy");
}

/// Launches blocks of 512 threads, two for each multiprocessor, if they can hold the row, else of
/// 1024. Throws Error if no cluster can hold the row.
template <class Z, class D>
void launch_losses(Context& context, std::int64_t rows, std::int64_t vocabulary, const Rows<Z>& z,
                   const TokenData& token, const Rows<D>& dlogits) {
  constexpr unsigned kThreads = 512;
  constexpr int kQuads = 10;
  constexpr std::int64_t kPart = kThreads * kQuads * kQuad;
  static_assert(kPart % numerics::kSumChunk == 0);
  const std::int64_t blocks = (vocabulary + kPart - 1) / kPart;
  if (blocks <= kMostBlocks) {
    launch_rows<Z, D, kQuads, kThreads>(context, rows, vocabulary, static_cast<int>(blocks), z,
                                        token, dlogits);
    return;
  }
  constexpr std::int64_t kMost = kMostBlocks * kMostPart;
  if (vocabulary > kMost) {
    throw Error("cross_entropy: " + std::to_string(vocabulary) + " logits of a token, at most " +
                std::to_string(kMost) + " on a GPU");
  }
  launch_rows<Z, D, kMostQuads, kMostThreads>(context, rows, vocabulary, kMostBlocks, z, token,
                                              dlogits);
}

}  // namespace

void run(Context& context, const ops::CrossEntropy& op) {
  op.check();
  const TokenData token{op.targets.row<std::int32_t>(0), op.weights.row<float>(0),
                        op.scalars.row<float>(0), op.token_loss.row<float>(0), context.faults()};
  if (op.logits.rows > 0) {
    with_rows(
        [&](const auto& z, const auto& dlogits) {
          launch_losses(context, op.logits.rows, op.logits.cols, z, token, dlogits);
        },
        op.logits, op.dlogits);
  }
  if (op.summed.empty()) return;
  constexpr unsigned kThreads = 1024;
  add_losses<<<1, kThreads, 0, context.stream()>>>(op.summed.cols, op.summed.row<float>(0),
                                                   op.scalars.row<float>(0));
  check_launch("cross_entropy: loss sum");
}

void run(Context& context, const ops::Argmax& op) {
  op.check();
  if (op.logits.rows == 0) return;
  with_rows(
      [&]<class Z>(const Rows<Z>& z) {
        row_argmax<<<static_cast<unsigned>(op.logits.rows), 256, 0, context.stream()>>>(
            op.logits.cols, z, op.out.row<std::int32_t>(0));
        check_launch("argmax");
      },
      op.logits);
}

}  // namespace fp8lab::cuda
