// A tile of one head in shared memory, in the layout of TMA and wgmma.
#pragma once

#include "kernels/attention/attention.cuh"
#include "kernels/ptx/wgmma_attention.cuh"
#include "kernels/runtime/tensor_map.hpp"

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

/// Writes out = O / l of the warp's 16 rows, from `warp_row` on, to the tile. O is in the layout of
/// accumulators; l has one number for each of the thread's two rows.
template <int kDim>
__device__ void stage_rows(HeadTile<kDim>& tile, int warp_row, const float (&out)[kDim / 2],
                           const float (&sums)[2]) {
  const auto lane = static_cast<unsigned>(computed_here(lane_id()));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float inverse = 1.0f / sums[r];
    const unsigned row = warp_row + lane / 4 + 8 * r;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int i = 4 * n + 2 * r;
      auto* pair = reinterpret_cast<std::uint32_t*>(tile.piece(row, n)) + lane % 4;
      *pair = pack_bf16(out[i] * inverse, out[i + 1] * inverse);
    }
  }
}

/// Stores the warp's rows of the tile of `head` from `position` on; those past the sequence are
/// left out. Precondition: the whole warp calls it, after stage_rows.
template <int kDim>
__device__ void store_tile_rows(const HeadTile<kDim>& tile, int warp_row, const CUtensorMap* map,
                                int head, int position, int b) {
  async_fence();
  __syncwarp();
  if (lane_id() != 0) return;
#pragma unroll
  for (int i = 0; i < HeadTile<kDim>::kBlocks; ++i) {
    store_box(tile.blocks[i] + warp_row * kSwizzleColumns, map, head * kDim + i * kSwizzleColumns,
              position + warp_row, b);
  }
  store_commit();
}

/// Returns a map of `matrices` matrices of bf16 with `rows` rows each, with boxes of a block's
/// columns by `box_rows` rows.
inline CUtensorMap head_map(const TensorView& view, std::int64_t rows, std::int64_t matrices,
                            int box_rows) {
  return tensor_map(view.data, 2,
                    {{view.cols, 1, kSwizzleColumns},
                     {rows, view.row_stride, box_rows},
                     {matrices, rows * view.row_stride, 1}},
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

/// True if bulk copies can read the rows.
inline bool has_bulk_rows(const TensorView& view) {
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.row_stride * bytes % 16 == 0;
}

}  // namespace fp8lab::cuda
