// Tile operations of a warpgroup in the backward pass on wgmma (attention_backward_wgmma.cu):
// products, weights, masks and stores.
#pragma once

#include <limits>

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/head_tile.cuh"
#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma_attention.cuh"

namespace fp8lab::cuda {

constexpr int kConsumers = 2;  ///< consumer warpgroups, with 64 keys or queries each
constexpr int kBlockTile = kConsumers * kTileRows;
constexpr int kBackwardThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kCopyRegisters = 24, kRegisters = 240;  ///< of producer and consumer threads
constexpr int kGroups = kTileRows / kChainGroup;
constexpr int kNoQuery = std::numeric_limits<int>::max();

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};

/// A thread's part of 64 x 64 scores. Element 4 n + 2 r + e is in row `row` + 8 r and column
/// `column` + 8 n + e, with row = 16 (warp % 4) + fragment_row() and column = fragment_column().
using Scores = float[kTileRows / 2];
/// A thread's part of 64 x 64 bf16 as A operands of the sums, for each group of 16 columns.
using Weights = std::uint32_t[kGroups][4];
/// A thread's part of 64 rows by kDim bf16 as A operands of the scores.
template <int kDim>
using RowOperands = std::uint32_t[kDim / kChainGroup][4];

/// Returns the thread's first row among the warpgroup's 64.
__device__ inline int warpgroup_row() {
  return warp_id() % (kWarpgroup / kWarpSize) * kChainGroup + fragment_row();
}

/// Returns the increment that moves a K-contiguous descriptor from the first
/// columns to [16 s, 16 s + 16).
__device__ constexpr std::uint64_t column_step(int s) {
  constexpr int kInBlock = kSwizzleColumns / kChainGroup;
  return s / kInBlock * (sizeof(HeadTile<kSwizzleColumns>) >> 4) +
         s % kInBlock * kDescriptorStep<false>;
}

/// Issues scores = chain(0; a, b^T) over the columns of two tiles.
template <int kDim>
__device__ __forceinline__ void issue_scores(Scores& scores, const HeadTile<kDim>& a,
                                             const HeadTile<kDim>& b) {
  const std::uint64_t left = operand_descriptor<false>(&a), right = operand_descriptor<false>(&b);
  keep(scores);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kDim / kChainGroup; ++s) {
    wgmma_bf16<kTileRows, false, false>(scores, left + column_step(s), right + column_step(s),
                                        s > 0);
  }
  wgmma_commit();
}
template <int kDim>
__device__ __forceinline__ void issue_scores(Scores& scores, const RowOperands<kDim>& a,
                                             const HeadTile<kDim>& b) {
  const std::uint64_t right = operand_descriptor<false>(&b);
  keep(scores);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kDim / kChainGroup; ++s) {
    wgmma_bf16<kTileRows, false>(scores, a[s], right + column_step(s), s > 0);
  }
  wgmma_commit();
}

/// Issues sums = chain(sums; a, b) over the rows of the tile.
template <int kDim>
__device__ __forceinline__ void issue_sums(float (&sums)[kDim / 2], Weights& a,
                                           const HeadTile<kDim>& b) {
  const std::uint64_t right = operand_descriptor<true>(&b);
  keep(sums);
  keep(a);
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    wgmma_bf16<kDim, true>(sums, a[g], right + g * kDescriptorStep<true>, true);
  }
  wgmma_commit();
}

/// Computes sums = chain(sums; a, b) over `groups` of 16 rows of the tile; each
/// warp for its own 16 rows.
template <int kDim>
__device__ __forceinline__ void add_sums(float (&sums)[kDim / 2], const Weights& a,
                                         const HeadTile<kDim>& b, unsigned groups) {
  const int r = lane_id() % 8, i = lane_id() / 8;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if ((groups >> g & 1u) == 0) continue;
    const int row = g * kChainGroup + r + 8 * (i % 2);
#pragma unroll
    for (int pair = 0; pair < kDim / kChainGroup; ++pair) {
      std::uint32_t right[4];
      load_matrices_transposed(
          b.piece(static_cast<unsigned>(row), static_cast<unsigned>(2 * pair + i / 2)), right);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float d[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) d[e] = sums[8 * pair + 4 * n + e];
        multiply_group(a[g], right[2 * n], right[2 * n + 1], d);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[8 * pair + 4 * n + e] = d[e];
      }
    }
  }
}

/// Rounds values to operands.
__device__ __forceinline__ void pack(const Scores& values, Weights& operands) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      operands[g][i] = pack_bf16(values[8 * g + 2 * i], values[8 * g + 2 * i + 1]);
    }
  }
}

/// Computes the weights of distances. Precondition: the whole warp calls it.
__device__ __forceinline__ void weigh(Scores& x) {
  constexpr int kTogether = 16;
#pragma unroll
  for (int first = 0; first < kTileRows / 2; first += kTogether) {
    // Positive numbers compare like their bits; negative numbers do too, above all positive ones.
    int farthest = 0;
    unsigned below = 0;
#pragma unroll
    for (int i = first; i < first + kTogether; i += 2) {
      farthest = __vimax3_s32(farthest, __float_as_int(x[i]), __float_as_int(x[i + 1]));
      below = __vimax3_u32(below, __float_as_uint(x[i]), __float_as_uint(x[i + 1]));
    }
    const bool normal =
        farthest <= __float_as_int(numerics::kNormalWeight) && below <= __float_as_uint(-0.5f);
    if (__all_sync(kAllLanes, normal)) {
#pragma unroll
      for (int i = first; i < first + kTogether; ++i)
        x[i] = numerics::normal_attention_weight(x[i]);
    } else {
#pragma unroll
      for (int i = first; i < first + kTogether; ++i) x[i] = numerics::attention_weight(x[i]);
    }
  }
}

/// Zeros the elements whose bit is not set.
__device__ __forceinline__ void mask(Scores& values, std::uint32_t visible) {
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    values[i] = (visible >> i & 1u) != 0 ? values[i] : 0.0f;
  }
}

/// Stores two neighbouring columns. Preconditions: the first column is even;
/// rows are aligned to 16 bytes.
__device__ inline void store_pair(const ResultRows& result, std::int64_t row, int column,
                                  float first, float second) {
  const std::int64_t i = row * result.stride + column;
  if (result.bf16) {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(result.data) + i) =
        pack_bf16(first, second);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(result.data) + i) = {
        numerics::canonical_nan(first), numerics::canonical_nan(second)};
  }
}

/// Stores the warpgroup's 64 rows of a head from position `first` on, times `factor`.
template <int kDim>
__device__ void store_tile(const AttentionProblem& problem, int b, int head, int first,
                           const float (&sums)[kDim / 2], float factor, const ResultRows& result) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = first + warpgroup_row() + 8 * r;
    if (position >= problem.sequence) continue;
    const std::int64_t token = problem.token(b, position);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      store_pair(result, token, head * kDim + 8 * n + fragment_column(),
                 sums[4 * n + 2 * r] * factor, sums[4 * n + 2 * r + 1] * factor);
    }
  }
}

constexpr int kReleases = kConsumers * kWarpgroup / kWarpSize;

template <int kStages>
__device__ void init_stages(std::uint64_t (&full)[kStages], std::uint64_t (&empty)[kStages]) {
  for (int s = 0; s < kStages; ++s) {
    barrier_init(&full[s], 1);
    barrier_init(&empty[s], kReleases);
  }
}

}  // namespace fp8lab::cuda
