// Sums in a defined order, so that every backend returns the same bits.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr std::int64_t kLanes = 32;       ///< partial sums of a chunk
inline constexpr std::int64_t kSumChunk = 4096;  ///< elements of a chunk

/// Halving combination of the partial sums: lane[l] += lane[l + s] for s = 16, 8, 4, 2, 1.
template <class T>
FP8LAB_HD constexpr T combine_lanes(T (&lane)[kLanes]) {
  for (std::int64_t span = kLanes / 2; span > 0; span /= 2) {
    for (std::int64_t l = 0; l < span; ++l) lane[l] += lane[l + span];
  }
  return lane[0];
}

/// Returns the sum of load(first) .. load(last - 1), at most kSumChunk elements: lane l adds
/// elements l, l + 32, l + 64, ... of the chunk in ascending order, starting from +0; then the
/// lanes are combined.
FP8LAB_HD_TEMPLATE
template <class T, class Load>
FP8LAB_HD constexpr T chunk_sum(std::int64_t first, std::int64_t last, const Load& load) {
  T lane[kLanes] = {};
  std::int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lane[l] += load(i + l);
  }
  for (std::int64_t l = 0; i + l < last; ++l) lane[l] += load(i + l);
  return combine_lanes(lane);
}

/// Returns the sum of all n elements as one chunk of sums of 4096^kLevel consecutive elements each.
FP8LAB_HD_TEMPLATE
template <int kLevel, class T, class Load>
FP8LAB_HD constexpr T level_sum(std::int64_t first, std::int64_t last, const Load& load) {
  if constexpr (kLevel == 0) {
    return chunk_sum<T>(first, last, load);
  } else {
    std::int64_t block = 1;
    for (int level = 0; level < kLevel; ++level) block *= kSumChunk;
    T lane[kLanes] = {};
    std::int64_t l = 0;
    for (std::int64_t start = first; start < last; start += block) {
      const std::int64_t end = last - start < block ? last : start + block;
      lane[l] += level_sum<kLevel - 1, T>(start, end, load);
      l = (l + 1) % kLanes;
    }
    return combine_lanes(lane);
  }
}

/// Returns the fixed-order sum of load(0) .. load(n - 1) in T (float or double), each addition
/// rounded to nearest even. Up to 4096 elements are one chunk (chunk_sum); of more, the sums of
/// consecutive chunks of 4096 are summed by the same rule, again in chunks of 4096 if there are
/// more. A lane is never -0, so adding +0 is exact: zeros at the end and a level of a single chunk
/// change nothing. n = 0 gives +0; n is at most 2^48.
FP8LAB_HD_TEMPLATE
template <class T = float, class Load>
FP8LAB_HD constexpr T tree_sum(std::int64_t n, Load load) {
  if (n <= kSumChunk) return chunk_sum<T>(0, n, load);
  return level_sum<3, T>(0, n, load);
}

FP8LAB_NUMERICS_END
