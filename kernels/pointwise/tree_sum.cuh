// numerics::tree_sum by warps and blocks, with the same bits.
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

/// Computes numerics::combine_lanes of the values of a warp; every lane gets the result.
__device__ inline float combine_lanes(float lane) {
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    lane += __shfl_down_sync(kAllLanes, lane, span);
  }
  return __shfl_sync(kAllLanes, lane, 0);
}

/// Computes numerics::chunk_sum with one warp; every lane gets the result.
template <class Load>
__device__ float warp_chunk_sum(std::int64_t first, std::int64_t last, const Load& load) {
  float lane = 0.0f;
#pragma unroll 8
  for (std::int64_t i = first + lane_id(); i < last; i += kWarpSize) lane += load(i);
  return combine_lanes(lane);
}

/// The levels of tree_sum above the chunks, in the lanes of one warp: the sum of the chunk
/// sums, added in order. Supports up to 4096^3 elements. The sum of a single chunk is that
/// chunk's, as a lane is never -0.
class ChunkSums {
 public:
  /// Adds the sum of the next chunk. Precondition: it is the same in every lane.
  __device__ void add(float sum) {
    if (chunks_ % numerics::kLanes == lane_id()) lane_ += sum;
    ++chunks_;
    if (chunks_ % numerics::kSumChunk == 0) close();
  }

  /// Returns the sum of all chunks to every lane. Nothing may be added afterwards.
  __device__ float total() {
    if (chunks_ % numerics::kSumChunk != 0) close();
    return combine_lanes(upper_lane_);
  }

 private:
  /// Finishes a chunk of 4096 chunk sums.
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

/// Returns the end of chunk `chunk` of n elements.
__device__ inline std::int64_t chunk_end(std::int64_t chunk, std::int64_t n) {
  const std::int64_t end = (chunk + 1) * numerics::kSumChunk;
  return end < n ? end : n;
}

/// Computes tree_sum(n, load) with one warp; every lane gets the result.
template <class Load>
__device__ float warp_tree_sum(std::int64_t n, const Load& load) {
  ChunkSums sums;
  for (std::int64_t chunk = 0; chunk * numerics::kSumChunk < n; ++chunk) {
    sums.add(warp_chunk_sum(chunk * numerics::kSumChunk, chunk_end(chunk, n), load));
  }
  return sums.total();
}

/// Computes the tree_sum of n elements with one block of whole warps; every thread gets the result.
/// Precondition: every thread of the block calls it. The chunks are distributed over `teams` teams
/// of threads; the calling thread belongs to team `team`. sum_of_chunk(chunk) returns a chunk's sum
/// to the team's `leader`. The first warp adds the sums.
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

/// Computes tree_sum(n, load) with one block, one warp for each chunk.
template <class Load>
__device__ float block_tree_sum(std::int64_t n, const Load& load) {
  return block_sum_of_chunks(n, warp_id(), warp_count(), lane_id() == 0, [&](std::int64_t chunk) {
    return warp_chunk_sum(chunk * numerics::kSumChunk, chunk_end(chunk, n), load);
  });
}

/// A team of kWarpSize / kWidth threads that adds a chunk whose elements are loaded kWidth at a
/// time. Thread t of the team computes lanes kWidth t, kWidth t + 1, ... of numerics::chunk_sum.
template <int kWidth>
struct Team {
  static constexpr int kThreads = kWarpSize / kWidth;

  /// Return the index of the calling thread's team in its block, of the thread in its
  /// team, and the number of teams.
  static __device__ int id() { return static_cast<int>(threadIdx.x) / kThreads; }
  static __device__ int rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  static __device__ int count() { return static_cast<int>(blockDim.x) / kThreads; }

  /// kWidth consecutive elements, the first at a multiple of kWidth.
  struct Values {
    float of[kWidth];
  };

  /// Computes numerics::chunk_sum of elements [first, end); the thread of rank 0 gets it. load(i)
  /// reads kWidth elements from i on, a multiple of kWidth, all below `end`; values(loaded)
  /// converts them to Values; last(i) returns the Values at the end, with +0 past the last element.
  /// kTogether loads are in flight at a time.
  template <int kTogether, class Load, class MakeValues, class Last>
  static __device__ float chunk_sum(std::int64_t first, std::int64_t end, const Load& load,
                                    const MakeValues& values, const Last& last) {
    Values lanes{};
    const auto add = [&lanes](const Values& next) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) lanes.of[i] += next.of[i];
    };
    std::int64_t i = first + kWidth * rank();
    for (; i + (kTogether - 1) * kWarpSize + kWidth - 1 < end; i += kTogether * kWarpSize) {
      decltype(load(i)) loaded[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) loaded[j] = load(i + j * kWarpSize);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) add(values(loaded[j]));
    }
    for (; i < end; i += kWarpSize) add(last(i));
    // Lanes 16, 8, ... kWidth apart belong to different threads; closer ones belong to one thread.
    const int first_lane = lane_id() / kThreads * kThreads;
    const unsigned team =
        kThreads == kWarpSize ? kAllLanes : ((1u << kThreads % kWarpSize) - 1u) << first_lane;
    for (int span = kThreads / 2; span > 0; span /= 2) {
#pragma unroll
      for (int l = 0; l < kWidth; ++l) {
        lanes.of[l] += __shfl_down_sync(team, lanes.of[l], span, kThreads);
      }
    }
#pragma unroll
    for (int span = kWidth / 2; span > 0; span /= 2) {
#pragma unroll
      for (int l = 0; l < span; ++l) lanes.of[l] += lanes.of[l + span];
    }
    return lanes.of[0];
  }
};

}  // namespace fp8lab::cuda
