// The stages of the wgmma GEMM in shared memory, and the warpgroup that copies into them.
#pragma once

#include <type_traits>

#include "kernels/gemm_epilogue.cuh"
#include "kernels/gemm_problem.cuh"
#include "kernels/ptx.cuh"

namespace fp8lab::cuda {

/// What is fixed when a kernel is compiled. kBlocksB: the scales of B are the same in each
/// kBlockColumns columns.
template <WgmmaTypes kTypes_, WgmmaStep kStep_, bool kBlocksB_, Chains kChains_, int kConsumers_,
          int kTileN_>
struct Plan {
  static constexpr WgmmaTypes kTypes = kTypes_;
  static constexpr WgmmaStep kStep = kStep_;
  static constexpr bool kBlocksB = kBlocksB_;
  static constexpr Chains kChains = kChains_;
  static constexpr int kConsumers = kConsumers_;  ///< warpgroups that multiply
  static constexpr int kTileM = 64 * kConsumers, kTileN = kTileN_;

  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kBytes = kTypes == WgmmaTypes::bf16 ? 2 : 1;
  static constexpr int kTileK = kTileBytes / kBytes;
  static constexpr bool kScaled = kStep != WgmmaStep::none && kStep != WgmmaStep::add;
  static constexpr int kColumns = kBlocksB ? kBlockColumns : 1;  ///< that share a scale
  static constexpr int kPlaces = scale_places(kTileN, kColumns);
  static constexpr int kSlots = kChains == Chains::pieces ? kStepsPerStage : 1;
  // As many stages and boxes of d as fit into the shared memory of a multiprocessor.
  static constexpr int kStages = kTileM * kTileN > 128 * 128           ? 4
                                 : kScaled&& kChains == Chains::pieces ? 5
                                                                       : 6;
  static constexpr int kBoxes = kChains == Chains::overlapped ? 1
                                : kTileN == 256               ? 2
                                                              : kTileN / kBoxColumns;
};

template <class P>
struct Stage {
  alignas(1024) unsigned char a[P::kTileM * kTileBytes];
  alignas(1024) unsigned char b[P::kTileN * kTileBytes];
};

template <class P>
struct NoScales {};
template <class P>
struct StageScales {
  float a[P::kSlots][P::kTileM];
  float b[P::kSlots][P::kPlaces];
};

template <class P>
struct alignas(1024) Shared {
  using Scales = std::conditional_t<P::kScaled, StageScales<P>, NoScales<P>>;
  Stage<P> stages[P::kStages];
  Staging<P::kBoxes> staging[P::kConsumers];
  ColumnScales<P::kTileN> columns[P::kConsumers];
  alignas(16) Scales scales[P::kStages];
  std::uint64_t full[P::kStages];
  std::uint64_t empty[P::kStages];
};

/// Position in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- the warpgroup that copies ------------------------------------------------------------------

/// Announces the bytes of a stage and copies the scales of the chunks with a part in it. Ranges of
/// a split begin at multiples of a chunk. One thread does this for all: where a chunk is a stage,
/// it only moves two pointers.
template <class P>
class ScaleCopies {
 public:
  __device__ ScaleCopies(const Problem& p, const Tile& tile)
      : chunk_(p.chunk),
        rows_(p.tiles_m * P::kTileM),
        columns_(p.tiles_n * P::kPlaces),
        a_(p.step_a + tile.m0),
        b_(p.step_b + tile.n0 / P::kTileN * P::kPlaces) {
    if constexpr (P::kSlots == 1) move(tile.k_begin / P::kTileK);
  }

  __device__ void copy(int k, int k_end, StageScales<P>& scales, std::uint64_t* full) {
    if constexpr (P::kSlots == 1) {
      barrier_expect(full, sizeof(Stage<P>) + kSlotBytes);
      copy_slot(0, 0, scales, full);
      move(1);
    } else {
      const int first = k / chunk_, count = (k_end - 1) / chunk_ - first + 1;
      barrier_expect(full, sizeof(Stage<P>) + count * kSlotBytes);
      for (int slot = 0; slot < count; ++slot) copy_slot(first + slot, slot, scales, full);
    }
  }

 private:
  static constexpr int kSlotBytes = (P::kTileM + P::kPlaces) * sizeof(float);

  __device__ void move(std::int64_t chunks) {
    a_ += chunks * rows_;
    b_ += chunks * columns_;
  }
  __device__ void copy_slot(std::int64_t chunk, int slot, StageScales<P>& scales,
                            std::uint64_t* full) const {
    copy_bytes(scales.a[slot], a_ + chunk * rows_, sizeof(scales.a[slot]), full);
    copy_bytes(scales.b[slot], b_ + chunk * columns_, sizeof(scales.b[slot]), full);
  }

  int chunk_, rows_, columns_;
  const float *a_, *b_;
};

/// Runs in one thread.
template <class P>
__device__ void copy_operands(const Problem& p, int rank, const CUtensorMap* map_a,
                              const CUtensorMap* map_b, Shared<P>& shared) {
  Ring<P::kStages> ring;
  for (Walk walk(p, rank); !walk.done(); walk.next()) {
    const Tile tile = walk.tile();
    ScaleCopies<P> scales(p, tile);
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += P::kTileK, ring.advance()) {
      Stage<P>& stage = shared.stages[ring.stage];
      std::uint64_t* full = &shared.full[ring.stage];
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      if constexpr (P::kScaled) {
        scales.copy(k, min(k + P::kTileK, tile.k_end), shared.scales[ring.stage], full);
      } else {
        barrier_expect(full, sizeof(stage));
      }
      copy_box(stage.a, map_a, full, k, tile.m0);
      if (p.tiling.cluster == 1) {
        copy_box(stage.b, map_b, full, k, tile.n0);
      } else {
        constexpr int kHalf = P::kTileN / kMaxCluster;
        copy_box_to(stage.b + rank * kHalf * kTileBytes, map_b, full, k, tile.n0 + rank * kHalf,
                    (1 << kMaxCluster) - 1);
      }
    }
  }
}

}  // namespace fp8lab::cuda
