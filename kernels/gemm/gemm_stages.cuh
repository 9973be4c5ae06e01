// The stages of the wgmma GEMM in shared memory, and the producer warpgroup that fills them.
#pragma once

#include <type_traits>

#include "kernels/gemm/gemm_epilogue.cuh"
#include "kernels/gemm/gemm_problem.cuh"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

/// Compile-time parameters of a kernel. kBlocksB: each kBlockColumns columns share the
/// scales of B. kRowBlocks: blocks of 64 rows that a warpgroup computes one after another
/// in the same partial sums.
template <WgmmaTypes kTypes_, numerics::ScaleOrder kOrder_, bool kBlocksB_, Chains kChains_,
          int kConsumers_, int kTileN_, int kRowBlocks_ = 1,
          WgmmaOrders kOrders_ = WgmmaOrders::k_k>
struct Plan {
  static constexpr WgmmaTypes kTypes = kTypes_;
  static constexpr WgmmaOrders kOrders = kOrders_;
  static constexpr bool kRowsA = a_by_rows(kOrders), kRowsB = b_by_rows(kOrders);
  static_assert(!kRowsB || kTileN_ % kBlockRows == 0);
  static constexpr numerics::ScaleOrder kOrder = kOrder_;  ///< for promoted chains
  static constexpr bool kBlocksB = kBlocksB_;
  static constexpr Chains kChains = kChains_;
  static constexpr int kConsumers = kConsumers_;  ///< consumer warpgroups
  static constexpr int kRowBlocks = kRowBlocks_;
  static constexpr int kRows = 64 * kRowBlocks;  ///< rows of a warpgroup
  static constexpr int kTileM = kRows * kConsumers, kTileN = kTileN_;

  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kBytes = kTypes == WgmmaTypes::bf16 ? 2 : 1;
  static constexpr int kTileK = kTileBytes / kBytes;
  static constexpr bool kScaled = kChains != Chains::one && numerics::scales_promotion(kOrder);
  static_assert(kRowBlocks == 1 || (kScaled && kChains == Chains::ping_pong));
  static_assert(!kScaled || kTileN == kScaledTileN);
  static constexpr int kColumns = kBlocksB ? kBlockColumns : 1;  ///< columns that share a scale
  /// True if a thread keeps its scales of single columns in registers for
  /// all row blocks of a chunk.
  static constexpr bool kHoldsColumns = kScaled && !kBlocksB && kRowBlocks > 1;
  static constexpr int kPlaces = scale_places(kTileN, kColumns);
  static constexpr int kSlots = kChains == Chains::any_length ? kStepsPerStage : 1;
  // As many stages and boxes of d as fit into the shared memory of a multiprocessor.
  static constexpr int kStages = kTileM * kTileN > 128 * 160               ? 4
                                 : kTileN > 128                            ? 5
                                 : kScaled&& kChains == Chains::any_length ? 5
                                                                           : 6;
  static constexpr int kBoxColumns = kTileN % 64 == 0 ? 64 : 32;
  static constexpr int kBoxes = kChains == Chains::overlapped || kRowBlocks > 1 ? 1
                                : kTileN == 256                                 ? 2
                                                : kTileN / kBoxColumns;
  // Registers of a thread. A multiprocessor has 128 for each of 512 threads.
  static constexpr int kCopyRegisters = kConsumers == 3 ? 32 : kRowBlocks > 1 ? 24 : 40;
  static constexpr int kRegisters = kConsumers == 3 ? 160 : kRowBlocks > 1 ? 240 : 232;
};

template <class P>
struct Stage {
  alignas(1024) unsigned char a[P::kTileM * kTileBytes];
  alignas(1024) unsigned char b[P::kTileN * kTileBytes];
};

/// The scales of one chunk of K for a tile, if the promotion step uses any.
template <class P>
struct NoScales {};
template <class P>
struct ChunkScales {
  alignas(128) float a[P::kTileM];
  alignas(128) float b[P::kPlaces];
};

template <class P>
struct alignas(1024) Shared {
  using Scales = std::conditional_t<P::kScaled, ChunkScales<P>, NoScales<P>>;
  Stage<P> stages[P::kStages];
  Staging<P::kBoxColumns, P::kBoxes> staging[P::kConsumers];
  ColumnScales<P::kTileN> columns[P::kConsumers];
  Scales scales[P::kStages][P::kSlots];
  std::uint64_t full[P::kStages];
  std::uint64_t empty[P::kStages];
};

// --- producer warpgroup --------------------------------------------------------------------------

/// Arrives for a stage and copies the scales of the chunks that overlap with it, up to `k_end`.
/// Ranges of a split begin at multiples of a chunk. A single thread does this for all, so it must
/// not divide if a chunk is a stage.
///
/// Like the operands, scales arrive by their bytes before the end of the phase of `full` that
/// consumers wait for. The next scales overwrite them after the phase of `empty` ends, by an
/// arrival of each warp after the reads of its lanes (Consumer::release). racecheck does not see
/// this order: it reports plain bulk copies, which it takes for writes of the issuing thread, and
/// does not follow copies through tensor maps.
template <class P>
__device__ void copy_scales(const Problem& p, const Maps& maps, const Tile& tile, int k, int k_end,
                            ChunkScales<P> (&scales)[P::kSlots], std::uint64_t* full) {
  constexpr int kChunkBytes = (P::kTileM + P::kPlaces) * sizeof(float);
  const int place = tile.n0 / P::kTileN * P::kPlaces;
  const auto copy_chunk = [&](int chunk, ChunkScales<P>& to) {
    copy_box(to.a, &maps.step_a, full, tile.m0, chunk);
    copy_box(to.b, &maps.step_b, full, place, chunk);
  };
  if constexpr (P::kSlots == 1) {
    barrier_expect(full, kChunkBytes);
    copy_chunk(k / P::kTileK, scales[0]);
  } else {
    const int first = k / p.chunk, count = (k_end - 1) / p.chunk - first + 1;
    barrier_expect(full, count * kChunkBytes);
#pragma unroll 1
    for (int slot = 0; slot < count; ++slot) copy_chunk(first + slot, scales[slot]);
  }
}

/// Copies blocks of an operand with contiguous rows, starting at row `row` and element `k`. Copies
/// block i only if wanted(i), to the own block's memory or to both blocks of a cluster.
template <class Wanted>
__device__ void copy_row_blocks(unsigned char* tile, const CUtensorMap* map, std::uint64_t* full,
                                int blocks, int row, int k, bool to_cluster, const Wanted& wanted) {
#pragma unroll
  for (int i = 0; i < blocks; ++i) {
    if (!wanted(i)) continue;
    unsigned char* const block = tile + i * kBlockRows * kTileBytes;
    if (to_cluster) {
      copy_box_to(block, map, full, row + i * kBlockRows, k, (1 << kMaxCluster) - 1);
    } else {
      copy_box(block, map, full, row + i * kBlockRows, k);
    }
  }
}

template <class P>
__device__ void copy_a(const Maps& maps, const Tile& tile, int k, unsigned char* to,
                       std::uint64_t* full) {
  if constexpr (P::kRowsA) {
    copy_row_blocks(to, &maps.a, full, P::kTileM / kBlockRows, tile.m0, k, false,
                    [](int) { return true; });
  } else {
    copy_box(to, &maps.a, full, k, tile.m0);
  }
}

/// Copies all of B or, in a cluster, this block's half of it to both blocks.
template <class P>
__device__ void copy_b(const Problem& p, const Maps& maps, const Tile& tile, int rank, int k,
                       unsigned char* to, std::uint64_t* full) {
  const bool shared = p.tiling.cluster > 1;
  if constexpr (P::kRowsB) {
    constexpr int kBlocks = P::kTileN / kBlockRows;
    copy_row_blocks(to, &maps.b, full, kBlocks, tile.n0, k, shared,
                    [&](int block) { return !shared || block * kMaxCluster / kBlocks == rank; });
  } else if (!shared) {
    copy_box(to, &maps.b, full, k, tile.n0);
  } else {
    constexpr int kHalf = P::kTileN / kMaxCluster;
    copy_box_to(to + rank * kHalf * kTileBytes, &maps.b, full, k, tile.n0 + rank * kHalf,
                (1 << kMaxCluster) - 1);
  }
}

/// Precondition: one thread runs it.
template <class P>
__device__ void copy_operands(const Problem& p, const Maps& maps, int rank, Shared<P>& shared) {
  Ring<P::kStages> ring;
  for (TileScheduler scheduler(p, rank); !scheduler.done(); scheduler.next()) {
    const Tile tile = scheduler.tile();
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += P::kTileK, ring.advance()) {
      Stage<P>& stage = shared.stages[ring.stage];
      std::uint64_t* full = &shared.full[ring.stage];
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      if constexpr (P::kScaled) {
        barrier_announce(full, sizeof(stage));
      } else {
        barrier_expect(full, sizeof(stage));
      }
      copy_a<P>(maps, tile, k, stage.a, full);
      copy_b<P>(p, maps, tile, rank, k, stage.b, full);
      if constexpr (P::kScaled) {
        wait_for_earlier_kernels();  // the kernel that orders the scales; the operands are older
        copy_scales<P>(p, maps, tile, k, min(k + P::kTileK, tile.k_end), shared.scales[ring.stage],
                       full);
      }
    }
  }
}

}  // namespace fp8lab::cuda
