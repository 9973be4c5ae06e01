// The selections of emulation/ops/channel_ranks.hpp by one block. Every thread of the block calls
// them. One multiprocessor reads the 4 bytes of each channel once for the largest, and four times
// for the median, eight times where the number of channels is even.
#pragma once

#include <cstdint>

#include "emulation/ops/channel_ranks.hpp"
#include "kernels/pointwise/tree_sum.cuh"

namespace fp8lab::cuda {

inline constexpr int kRankThreads = 1024;

/// Shared memory of the selections.
struct RankMemory {
  TopChannels lists[kRankThreads / kWarpSize];
  RankSelection::Count counts[RankSelection::kBins];
  RankSelection selection;
};

/// Lane 0 ends with the first channels of all lanes.
__device__ inline void merge_lanes(TopChannels& list) {
#pragma unroll 1
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
#pragma unroll
    for (int i = 0; i < TopChannels::kCount; ++i) {
      const std::uint32_t amax = __shfl_down_sync(kAllLanes, list.entries[i].amax, span);
      const std::int64_t index = __shfl_down_sync(kAllLanes, list.entries[i].index, span);
      // Lanes that are read in this step keep their lists.
      if (lane_id() < span) list.insert({amax, index});
    }
  }
}

/// Calls take(i, keys[i]) for this thread's share of n keys, and in all threads of a warp as often:
/// beyond the end take(i, 0) with i >= n. Keys are loaded several at a time, as one block alone has
/// too few threads to hide the latency of memory.
template <class Take>
__device__ void for_each_key(const std::uint32_t* keys, std::int64_t n, const Take& take) {
  constexpr int kLoads = 8;
  for (std::int64_t first = threadIdx.x; first - lane_id() < n; first += kLoads * kRankThreads) {
    std::uint32_t loaded[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const std::int64_t i = first + load * kRankThreads;
      loaded[load] = i < n ? keys[i] : 0;
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) take(first + load * kRankThreads, loaded[load]);
  }
}

/// The first channels of n; written by thread 0.
__device__ inline void find_top_channels(const std::uint32_t* amax, std::int64_t n,
                                         RankMemory& memory, TopChannels& top) {
  TopChannels list;
  list.clear();
  for_each_key(amax, n, [&](std::int64_t i, std::uint32_t key) {
    if (i < n) list.insert({key, i});
  });
  merge_lanes(list);
  if (lane_id() == 0) memory.lists[warp_id()] = list;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kRankThreads / kWarpSize; ++warp) {
    for (const Channel& channel : memory.lists[warp].entries) list.insert(channel);
  }
  top = list;
}

/// Adds the next digits of the keys that `selection` contains to `counts`. Keys mostly share their
/// first digit: a warp adds equal ones at once.
__device__ inline void count_digits(const std::uint32_t* keys, std::int64_t n,
                                    const RankSelection& selection, RankSelection::Count* counts) {
  constexpr int kNoDigit = RankSelection::kBins;
  for_each_key(keys, n, [&](std::int64_t i, std::uint32_t key) {
    const int digit = i < n && selection.contains(key) ? selection.digit(key) : kNoDigit;
    const unsigned equal = __match_any_sync(kAllLanes, digit);
    if (digit != kNoDigit && lane_id() == __ffs(static_cast<int>(equal)) - 1) {
      atomicAdd(&counts[digit], static_cast<RankSelection::Count>(__popc(equal)));
    }
  });
}

/// The key of `rank` among n, for every thread.
__device__ inline std::uint32_t select_rank(const std::uint32_t* keys, std::int64_t n,
                                            std::int64_t rank, RankMemory& memory) {
  RankSelection selection;
  selection.start(rank);
  while (!selection.done()) {
    for (int bin = threadIdx.x; bin < RankSelection::kBins; bin += kRankThreads) {
      memory.counts[bin] = 0;
    }
    __syncthreads();
    count_digits(keys, n, selection, memory.counts);
    __syncthreads();
    if (threadIdx.x == 0) {
      selection.descend(memory.counts);
      memory.selection = selection;
    }
    __syncthreads();
    selection = memory.selection;
  }
  return selection.prefix;
}

/// rank_channels; thread 0 writes `ranks`.
__device__ inline void rank_channels(const std::uint32_t* amax, std::int64_t n, RankMemory& memory,
                                     ChannelRanks& ranks) {
  find_top_channels(amax, n, memory, ranks.top);
  const std::uint32_t lower = select_rank(amax, n, (n - 1) / 2, memory);
  const std::uint32_t upper = n % 2 != 0 ? lower : select_rank(amax, n, n / 2, memory);
  if (threadIdx.x != 0) return;
  ranks.lower_median = lower;
  ranks.upper_median = upper;
}

}  // namespace fp8lab::cuda
