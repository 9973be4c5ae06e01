// The selections of emulation/ops/channel_ranks.hpp, each by one block of kRankThreads. Every
// thread of the block calls them. One multiprocessor reads the 4 bytes of each channel about twice
// for the largest, and four or five times for the median.
#pragma once

#include <cstdint>

#include "emulation/ops/channel_ranks.hpp"
#include "kernels/pointwise/tree_sum.cuh"

namespace fp8lab::cuda {

inline constexpr int kRankThreads = 1024;

inline constexpr int kRankWarps = kRankThreads / kWarpSize;
static_assert(kRankWarps == kWarpSize);

/// Shared memory of the selections.
struct RankMemory {
  Channel first[kRankWarps];
  RankSelection::Count counts[RankSelection::kBins];
  RankSelection selection;
  RankSelection::Count equal;
  std::uint32_t above;
};

/// Of the channels of a warp the one that ranks first, for all lanes.
__device__ inline Channel first_of_warp(Channel mine) {
#pragma unroll
  for (int span = 1; span < kWarpSize; span *= 2) {
    const Channel other{__shfl_xor_sync(kAllLanes, mine.amax, span),
                        __shfl_xor_sync(kAllLanes, mine.index, span)};
    if (ranks_before(other, mine)) mine = other;
  }
  return mine;
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

/// The first channels of n, one after the other; written by thread 0. A thread offers the first of
/// its channels that none of those found so far is.
__device__ inline void find_top_channels(const std::uint32_t* amax, std::int64_t n,
                                         RankMemory& memory, TopChannels& top) {
  constexpr Channel kNobody{0, TopChannels::kNone};
  Channel last{~0u, -1}, mine{~0u, -1};  // before every channel
  for (int place = 0; place < TopChannels::kCount; ++place) {
    if (mine.index == last.index) {
      mine = kNobody;
      // Not for_each_key: the threads whose channels are taken are few.
#pragma unroll 8
      for (std::int64_t i = threadIdx.x; i < n; i += kRankThreads) {
        const Channel channel{amax[i], i};
        if (ranks_before(last, channel) && ranks_before(channel, mine)) mine = channel;
      }
    }
    const Channel first = first_of_warp(mine);
    if (lane_id() == 0) memory.first[warp_id()] = first;
    __syncthreads();
    last = first_of_warp(memory.first[lane_id()]);
    __syncthreads();  // the next round writes memory.first again
    if (threadIdx.x == 0) top.entries[place] = last;
  }
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

/// RankSelection::descend by one warp; `equal` gets the number of keys in the bin.
__device__ inline void descend(const RankSelection::Count* counts, RankSelection& selection,
                               RankSelection::Count& equal) {
  constexpr int kBinsOfLane = RankSelection::kBins / kWarpSize;
  RankSelection::Count mine[kBinsOfLane], before = 0;
#pragma unroll
  for (int i = 0; i < kBinsOfLane; ++i) {
    mine[i] = counts[lane_id() * kBinsOfLane + i];
    before += mine[i];
  }
  const RankSelection::Count own = before;
#pragma unroll
  for (int span = 1; span < kWarpSize; span *= 2) {
    const RankSelection::Count lower = __shfl_up_sync(kAllLanes, before, span);
    if (lane_id() >= span) before += lower;
  }
  before -= own;
  // One lane has the rank in its bins.
  RankSelection found = selection;
  bool here = false;
#pragma unroll
  for (int i = 0; i < kBinsOfLane; ++i) {
    if (selection.rank >= before && selection.rank < before + mine[i]) {
      found.keep(static_cast<std::uint32_t>(lane_id() * kBinsOfLane + i), before);
      here = true;
      equal = mine[i];
    }
    before += mine[i];
  }
  __syncwarp();
  if (here) selection = found;
}

/// The keys of the ranks (n - 1) / 2 and n / 2 among n, written by thread 0.
__device__ inline void find_medians(const std::uint32_t* keys, std::int64_t n, RankMemory& memory,
                                    std::uint32_t& lower, std::uint32_t& upper) {
  RankSelection selection;
  selection.start((n - 1) / 2);
  if (threadIdx.x == 0) {
    memory.selection = selection;
    memory.above = ~0u;
  }
  while (!selection.done()) {
    for (int bin = threadIdx.x; bin < RankSelection::kBins; bin += kRankThreads) {
      memory.counts[bin] = 0;
    }
    __syncthreads();
    count_digits(keys, n, selection, memory.counts);
    __syncthreads();
    if (warp_id() == 0) descend(memory.counts, memory.selection, memory.equal);
    __syncthreads();
    selection = memory.selection;
  }
  const std::uint32_t key = selection.prefix;
  const bool same = n % 2 != 0 || selection.rank + 1 < memory.equal;
  if (!same) {
    std::uint32_t above = ~0u;
    for_each_key(keys, n, [&](std::int64_t i, std::uint32_t other) {
      if (i < n && other > key) above = min(above, other);
    });
    above = __reduce_min_sync(kAllLanes, above);
    if (lane_id() == 0) atomicMin(&memory.above, above);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  lower = key;
  upper = same ? key : memory.above;
}

}  // namespace fp8lab::cuda
