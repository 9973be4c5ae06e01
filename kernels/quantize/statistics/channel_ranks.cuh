// The selections of emulation/ops/quantize/channel_ranks.hpp in one block of kRankThreads.
// Precondition: every thread of the block calls them. One multiprocessor reads the 4 bytes of each
// channel about twice for the largest channels, and four or five times for the median.
#pragma once

#include <cstdint>

#include "emulation/ops/quantize/channel_ranks.hpp"
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

/// Returns the channel of a warp that ranks first to all lanes.
__device__ inline Channel first_of_warp(Channel mine) {
#pragma unroll
  for (int span = 1; span < kWarpSize; span *= 2) {
    const Channel other{__shfl_xor_sync(kAllLanes, mine.amax, span),
                        __shfl_xor_sync(kAllLanes, mine.index, span)};
    if (ranks_before(other, mine)) mine = other;
  }
  return mine;
}

/// Calls take(i, keys[i]) for this thread's share of n keys, equally often in all threads of a
/// warp: beyond the end it calls take(i, 0) with i >= n. It loads several keys at a time, because a
/// single block has too few threads to hide the latency of memory.
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

/// Finds the first TopChannels::kCount of n channels, one after another; thread 0 writes them. In
/// each round a thread offers its first channel that has not been taken.
__device__ inline void find_top_channels(const std::uint32_t* amax, std::int64_t n,
                                         RankMemory& memory, TopChannels& top) {
  constexpr Channel kNobody{0, TopChannels::kNone};
  Channel last{~0u, -1}, mine{~0u, -1};  // ranks before every channel
  for (int place = 0; place < TopChannels::kCount; ++place) {
    if (mine.index == last.index) {
      mine = kNobody;
      // Not for_each_key: only few threads, whose channel was taken, search again.
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

/// Counts the next digits of the keys that `selection` contains in `counts`. Most keys share their
/// first digit, so a warp adds equal digits in one atomic.
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

/// Runs RankSelection::descend in one warp; `equal` gets the number of keys in the bin.
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
  // Exactly one lane has the rank in its bins.
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

/// Finds the keys of ranks (n - 1) / 2 and n / 2 among n; thread 0 writes them.
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
