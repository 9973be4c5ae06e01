// Rows that a block holds in registers, a row a block: group 0 of all its threads side by side,
// then group 1.
#pragma once

#include "kernels/pointwise/group.cuh"

namespace fp8lab::cuda {

inline constexpr int kHeldGroups = 4;  ///< of a thread
inline constexpr int kFewRowThreads = 256, kMostRowThreads = 1024;
/// Columns that the threads of a block can hold.
inline constexpr std::int64_t kLongestRow = std::int64_t{kMostRowThreads} * kHeldGroups * kGroup;

/// Column of group h of a thread: groups lie one width of the block apart.
__device__ inline int held_col(int h) {
  return (h * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kGroup;
}

/// Threads of a block for a row of `cols` columns; up to kFewRowThreads of them, or more, have
/// kernels of their own.
inline unsigned held_row_threads(std::int64_t cols) {
  constexpr std::int64_t kWarp = 32, kColsOfWarp = kWarp * kHeldGroups * kGroup;
  return static_cast<unsigned>((cols + kColsOfWarp - 1) / kColsOfWarp * kWarp);
}

}  // namespace fp8lab::cuda
