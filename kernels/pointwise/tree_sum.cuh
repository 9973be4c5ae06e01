// numerics::tree_sum by warps and blocks, with its bits.
//
// A chunk of 4096 elements belongs to one warp: thread l is lane l of numerics::chunk_sum and adds
// elements l, l + 32, ... ascending from +0. numerics::combine_lanes then sets lane[l] += lane[l +
// s] for l < s, with s = 16, 8, 4, 2, 1. A shuffle does the same: before the step of span s the
// threads below 2s hold their lanes (all 32 before the first); thread l < s adds what thread l + s
// held before the step, which is lane[l + s], as the sequential loop never writes a lane at or
// above s in that step. Threads at or above s hold sums that no later step reads. Above the chunks,
// ChunkSums adds chunk sums to lanes in the order of numerics::level_sum.
#pragma once

#include <cstdint>

#include "emulation/numerics/tree_sum.hpp"

namespace fp8lab::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
static_assert(numerics::kLanes == kWarpSize);

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarpSize; }
__device__ inline int warp_count() { return static_cast<int>(blockDim.x) / kWarpSize; }

/// numerics::combine_lanes of the values of a warp; every lane gets the result.
__device__ inline float combine_lanes(float lane) {
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    lane += __shfl_down_sync(kAllLanes, lane, span);
  }
  return __shfl_sync(kAllLanes, lane, 0);
}

/// numerics::chunk_sum by one warp; every lane gets the result.
template <class Load>
__device__ float warp_chunk_sum(std::int64_t first, std::int64_t last, const Load& load) {
  float lane = 0.0f;
#pragma unroll 8
  for (std::int64_t i = first + lane_id(); i < last; i += kWarpSize) lane += load(i);
  return combine_lanes(lane);
}

/// The levels of tree_sum above the chunks, in the lanes of one warp: the sum of the chunk sums
/// taken in order. Up to 4096^3 elements; one chunk gives its own sum, as a lane is never -0.
class ChunkSums {
 public:
  /// The sum of the next chunk, the same in every lane.
  __device__ void add(float sum) {
    if (chunks_ % numerics::kLanes == lane_id()) lane_ += sum;
    ++chunks_;
    if (chunks_ % numerics::kSumChunk == 0) close();
  }

  /// Every lane gets the sum of all chunks; nothing may be added afterwards.
  __device__ float total() {
    if (chunks_ % numerics::kSumChunk != 0) close();
    return combine_lanes(upper_lane_);
  }

 private:
  /// Ends a chunk of 4096 chunk sums.
  __device__ void close() {
    const float sum = combine_lanes(lane_);
    const std::int64_t index = (chunks_ - 1) / numerics::kSumChunk;
    if (index % numerics::kLanes == lane_id()) upper_lane_ += sum;
    lane_ = 0.0f;
  }

  std::int64_t chunks_ = 0;
  float lane_ = 0.0f;
  float upper_lane_ = 0.0f;
};

/// First element after chunk `chunk` of n elements.
__device__ inline std::int64_t chunk_end(std::int64_t chunk, std::int64_t n) {
  const std::int64_t end = (chunk + 1) * numerics::kSumChunk;
  return end < n ? end : n;
}

/// tree_sum(n, load) by one warp, whose lanes all get the result.
template <class Load>
__device__ float warp_tree_sum(std::int64_t n, const Load& load) {
  ChunkSums sums;
  for (std::int64_t chunk = 0; chunk * numerics::kSumChunk < n; ++chunk) {
    sums.add(warp_chunk_sum(chunk * numerics::kSumChunk, chunk_end(chunk, n), load));
  }
  return sums.total();
}

/// tree_sum of n elements by one block of whole warps, whose threads all get the result. Every
/// thread of the block must call it. `teams` groups of threads share the chunks; the calling thread
/// is of number `team`, and sum_of_chunk(chunk) gives a team's `leader` the sum of one. The first
/// warp adds the sums.
template <class SumOfChunk>
__device__ float block_sum_of_chunks(std::int64_t n, int team, int teams, bool leader,
                                     const SumOfChunk& sum_of_chunk) {
  constexpr int kRound = 2 * kWarpSize;
  __shared__ float round_sums[kRound];
  const std::int64_t chunks = (n + numerics::kSumChunk - 1) / numerics::kSumChunk;
  ChunkSums sums;
  for (std::int64_t first = 0; first < chunks; first += kRound) {
    const std::int64_t last = first + kRound < chunks ? first + kRound : chunks;
    for (std::int64_t chunk = first + team; chunk < last; chunk += teams) {
      const float sum = sum_of_chunk(chunk);
      if (leader) round_sums[chunk - first] = sum;
    }
    __syncthreads();
    if (warp_id() == 0) {
      for (std::int64_t chunk = first; chunk < last; ++chunk) sums.add(round_sums[chunk - first]);
    }
    __syncthreads();
  }
  if (warp_id() == 0) {
    const float total = sums.total();
    if (lane_id() == 0) round_sums[0] = total;
  }
  __syncthreads();
  const float result = round_sums[0];
  __syncthreads();  // the next call writes round_sums again
  return result;
}

/// tree_sum(n, load) by one block: a chunk to each warp.
template <class Load>
__device__ float block_tree_sum(std::int64_t n, const Load& load) {
  return block_sum_of_chunks(n, warp_id(), warp_count(), lane_id() == 0, [&](std::int64_t chunk) {
    return warp_chunk_sum(chunk * numerics::kSumChunk, chunk_end(chunk, n), load);
  });
}

/// Half a warp, and the calling thread's number in it.
inline constexpr int kHalfWarp = kWarpSize / 2;
__device__ inline int half_warp_id() { return static_cast<int>(threadIdx.x) / kHalfWarp; }
__device__ inline int half_lane_id() { return static_cast<int>(threadIdx.x) % kHalfWarp; }

/// tree_sum by one block, of elements that are loaded in pairs: a chunk to each half of a warp.
/// Thread t of it is the lanes 2 t and 2 t + 1 of numerics::chunk_sum. load(i) reads the elements i
/// and i + 1 for an even i below n - 1, values(pair) makes two floats of them; last(i) returns
/// those of an i at the end, +0 for what is not there. Eight loads are under way at a time.
template <class Load, class Values, class Last>
__device__ float block_tree_sum_of_pairs(std::int64_t n, const Load& load, const Values& values,
                                         const Last& last) {
  constexpr int kTogether = 8;
  const auto sum_of_chunk = [&](std::int64_t chunk) {
    float2 lanes{0.0f, 0.0f};
    const auto add = [&lanes](const float2& pair) {
      lanes.x += pair.x;
      lanes.y += pair.y;
    };
    const std::int64_t end = chunk_end(chunk, n);
    std::int64_t i = chunk * numerics::kSumChunk + 2 * half_lane_id();
    for (; i + (kTogether - 1) * kWarpSize + 1 < end; i += kTogether * kWarpSize) {
      decltype(load(i)) pairs[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) pairs[j] = load(i + j * kWarpSize);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) add(values(pairs[j]));
    }
    for (; i < end; i += kWarpSize) add(last(i));
    // Lanes 16, 8, 4 and 2 apart are of threads 8, 4, 2 and 1 apart, the last two of one thread.
    const unsigned half = 0xFFFFu << (half_warp_id() % 2 * kHalfWarp);
    for (int span = kHalfWarp / 2; span > 0; span /= 2) {
      lanes.x += __shfl_down_sync(half, lanes.x, span, kHalfWarp);
      lanes.y += __shfl_down_sync(half, lanes.y, span, kHalfWarp);
    }
    return lanes.x + lanes.y;
  };
  return block_sum_of_chunks(n, half_warp_id(), 2 * warp_count(), half_lane_id() == 0,
                             sum_of_chunk);
}

}  // namespace fp8lab::cuda
