// Stream-K hand-over of the wgmma GEMM: the block that begins the chain of a tile passes its sums
// to the block that ends it, which continues in the order in which a single block would have added.
// A block hands over before it takes over, and takes over from a block with a lower index, which
// the device starts first; therefore every wait ends.
#pragma once

#include <type_traits>

#include "kernels/gemm/gemm_problem.cuh"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

template <class Sum>
using FourSums = std::conditional_t<std::is_same_v<Sum, int>, int4, float4>;

/// Returns where a thread of a block stores the sums that it hands over. Consecutive threads
/// use consecutive 16 bytes.
template <class Sum, int kCount>
__device__ inline FourSums<Sum>* handed_sums(const Problem& p, int block, int warpgroup) {
  const std::int64_t at = std::int64_t{block} * p.tiling.tile_m * p.tiling.tile_n;
  return reinterpret_cast<FourSums<Sum>*>(p.handed + at + warpgroup * kCount * kWarpgroup) +
         threadIdx.x % kWarpgroup;
}
/// Returns the signal of a warp, which hands over to the same warp of the block that ends the tile.
__device__ inline unsigned* handed_signal(const Problem& p, int block) {
  return p.signals + block * Context::kSignals + threadIdx.x / 32;
}
/// Pairs are swapped to avoid register bank conflicts, as in scale_thread_stride.
template <class Sum, int kRowBlocks, int kSums>
__device__ void hand_over_sums(const Problem& p, int warpgroup,
                               const Sum (&sums)[kRowBlocks][kSums]) {
  const int block = static_cast<int>(blockIdx.x);
  auto* to = handed_sums<Sum, kRowBlocks * kSums>(p, block, warpgroup);
#pragma unroll
  for (const auto& sum : sums) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4, to += kWarpgroup) {
      __stcg(to, FourSums<Sum>{sum[i + 1], sum[i], sum[i + 3], sum[i + 2]});
    }
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) signal_set(handed_signal(p, block));
}
template <class Sum, int kRowBlocks, int kSums>
__device__ void take_over_sums(const Problem& p, int warpgroup, Sum (&sums)[kRowBlocks][kSums]) {
  const int block = static_cast<int>(blockIdx.x) - p.tiling.cluster;
  signal_await(handed_signal(p, block));
  if (threadIdx.x % 32 == 0) *handed_signal(p, block) = 0;
  const auto* from = handed_sums<Sum, kRowBlocks * kSums>(p, block, warpgroup);
#pragma unroll
  for (auto& sum : sums) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4, from += kWarpgroup) {
      const FourSums<Sum> four = __ldcg(from);
      sum[i + 1] = four.x;
      sum[i] = four.y;
      sum[i + 3] = four.z;
      sum[i + 2] = four.w;
    }
  }
}

}  // namespace fp8lab::cuda
