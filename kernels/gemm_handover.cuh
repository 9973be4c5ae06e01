// Sums of a tile of the wgmma GEMM that pass from the block that begins its chain to the block that
// ends it: in the order in which a single block would have added them. A block gives before it
// takes, and takes from a block before it, which the device starts first: every wait ends.
#pragma once

#include "kernels/gemm_problem.cuh"
#include "kernels/ptx.cuh"

namespace fp8lab::cuda {

/// Where a thread of a block puts the sums that it hands over, 16 bytes beside those of the next
/// thread.
template <int kTileN>
__device__ inline float4* handed_sums(const Problem& p, int block, int warpgroup) {
  const std::int64_t at =
      (static_cast<std::int64_t>(block) * p.tiling.tile_m + warpgroup * 64) * kTileN;
  return reinterpret_cast<float4*>(p.handed + at) + threadIdx.x % kWarpgroup;
}
/// Each warp hands over to the same warp of the block that ends the tile, and tells it so.
__device__ inline unsigned* handed_signal(const Problem& p, int block) {
  return p.signals + block * Context::kSignals + threadIdx.x / 32;
}
template <int kTileN>
__device__ void give_sums(const Problem& p, int warpgroup, const float (&sum)[kTileN / 2]) {
  const int block = static_cast<int>(blockIdx.x);
  float4* to = handed_sums<kTileN>(p, block, warpgroup);
#pragma unroll
  for (int i = 0; i < kTileN / 8; ++i) {
    __stcg(to + i * kWarpgroup,
           make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) signal_set(handed_signal(p, block));
}
template <int kTileN>
__device__ void take_sums(const Problem& p, int warpgroup, float (&sum)[kTileN / 2]) {
  const int block = static_cast<int>(blockIdx.x) - p.tiling.cluster;
  signal_await(handed_signal(p, block));
  if (threadIdx.x % 32 == 0) *handed_signal(p, block) = 0;
  const float4* from = handed_sums<kTileN>(p, block, warpgroup);
#pragma unroll
  for (int i = 0; i < kTileN / 8; ++i) {
    const float4 four = __ldcg(from + i * kWarpgroup);
    sum[4 * i] = four.x;
    sum[4 * i + 1] = four.y;
    sum[4 * i + 2] = four.z;
    sum[4 * i + 3] = four.w;
  }
}

}  // namespace fp8lab::cuda
