// Sizes of the kernels on which the choice between them depends, for compute capability 9.0.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::cuda {

/// Number of consecutive columns that a thread processes together: 16 bytes of bf16.
inline constexpr int kGroup = 8;
/// Largest number of columns of a row that the registers of a block can hold.
inline constexpr std::int64_t kLongestRow = 32768;
/// Most bytes of a row that a norm keeps in shared memory.
inline constexpr std::int64_t kMostHeldBytes = 40960;
/// Largest number of one-row tiles that the columns of a warp of the statistics kernels may touch,
/// so that their scales can be prefetched.
inline constexpr int kMostRowTiles = 16;
/// Bytes of the widest access to memory.
inline constexpr std::int64_t kWidestAccess = 16;

/// Returns true if every row of the view begins on a multiple of `bytes`. A view without memory
/// counts as aligned.
inline bool has_aligned_rows(const TensorView& view, std::int64_t bytes = kWidestAccess) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return address % bytes == 0 && (view.rows <= 1 || view.row_stride * size % bytes == 0);
}

}  // namespace fp8lab::cuda
