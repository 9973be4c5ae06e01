// A tile of one head in shared memory, in the layout of TMA and wgmma.
#pragma once

#include "kernels/attention/attention.cuh"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

constexpr int kSwizzleColumns = 64;  ///< bf16 elements in a line of 128 bytes

/// 64 rows of a head, in blocks of 64 columns. Each block is a box in the 128-byte swizzle: 16-byte
/// piece j of a row is stored at piece j ^ (row % 8). Rows past the sequence are zeros.
template <int kDim>
struct alignas(1024) HeadTile {
  static constexpr int kBlocks = kDim / kSwizzleColumns;
  std::uint16_t blocks[kBlocks][kTileRows * kSwizzleColumns];

  /// Returns the eight elements of a row from column 8 j on.
  __device__ const std::uint16_t* piece(unsigned row, unsigned j) const {
    return blocks[j / 8] + row * kSwizzleColumns + (j % 8 ^ row % 8) * 8;
  }
  __device__ std::uint16_t* piece(unsigned row, unsigned j) {
    return const_cast<std::uint16_t*>(static_cast<const HeadTile*>(this)->piece(row, j));
  }
};

/// Copies the tile of `head` from `position` on in sequence b; `full` counts its bytes.
template <int kDim>
__device__ void copy_tile(HeadTile<kDim>& tile, const CUtensorMap* map, std::uint64_t* full,
                          int head, int position, int b) {
#pragma unroll
  for (int i = 0; i < HeadTile<kDim>::kBlocks; ++i) {
    copy_box(tile.blocks[i], map, full, head * kDim + i * kSwizzleColumns, position, b);
  }
}

/// Arrives at a barrier for a warp that no longer uses the data that the barrier guards.
__device__ inline void release(std::uint64_t* empty) {
  __syncwarp();
  if (lane_id() == 0) barrier_arrive(empty);
}

}  // namespace fp8lab::cuda
