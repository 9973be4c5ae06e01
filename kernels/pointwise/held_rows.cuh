// Rows that a block holds in registers, one row for each block: group 0 of all threads side by
// side, then group 1, and so on.
#pragma once

#include "kernels/pointwise/group.cuh"

namespace fp8lab::cuda {

inline constexpr int kHeldGroups = 4;  ///< groups of a thread
inline constexpr int kFewRowThreads = 256, kMostRowThreads = 1024;
static_assert(kLongestRow == std::int64_t{kMostRowThreads} * kHeldGroups * kGroup);

/// Returns the column of group h of the thread; consecutive groups are one block width apart.
__device__ inline int held_col(int h) {
  return (h * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kGroup;
}

/// Returns the number of threads for a row of `cols` columns. There are separate kernels for up to
/// kFewRowThreads threads and for more.
inline unsigned held_row_threads(std::int64_t cols) {
  constexpr std::int64_t kWarp = 32, kColsOfWarp = kWarp * kHeldGroups * kGroup;
  return static_cast<unsigned>((cols + kColsOfWarp - 1) / kColsOfWarp * kWarp);
}

}  // namespace fp8lab::cuda
