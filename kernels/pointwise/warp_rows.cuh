// Kernels in which a warp processes one row, or one head of a row, at a time.
#pragma once

#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"

namespace fp8lab::cuda {

inline constexpr unsigned kWarpRowThreads = 128;  ///< threads of a block: four rows

/// Return the first row of a warp, and the step to its next row.
__device__ inline std::int64_t first_row() {
  return static_cast<std::int64_t>(blockIdx.x) * warp_count() + warp_id();
}
__device__ inline std::int64_t row_step() {
  return static_cast<std::int64_t>(gridDim.x) * warp_count();
}

/// Calls body(col, count) for the groups of columns of a row, distributed over the lanes of a warp.
template <class Body>
__device__ void for_each_group_of_row(std::int64_t cols, const Body& body) {
  for (std::int64_t col = lane_id() * kGroup; col < cols; col += kWarpSize * kGroup) {
    body(col, cols - col < kGroup ? static_cast<int>(cols - col) : kGroup);
  }
}

/// Returns the number of blocks of kWarpRowThreads for `rows` rows; the
/// kernel's loop covers the rest.
inline unsigned warp_row_blocks(const Context& context, std::int64_t rows) {
  constexpr std::int64_t kRowsPerBlock = kWarpRowThreads / kWarpSize;
  const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 64;
  return grid_size((rows + kRowsPerBlock - 1) / kRowsPerBlock, enough);
}

}  // namespace fp8lab::cuda
