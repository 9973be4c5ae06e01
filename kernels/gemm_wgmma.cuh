// The wgmma GEMM: kernels, and their launch for one pair of operand types. Included once for each
// pair, so that they are compiled side by side.
#pragma once

#include <type_traits>

#include "kernels/gemm_epilogue.cuh"
#include "kernels/gemm_launch.cuh"
#include "kernels/gemm_problem.cuh"
#include "kernels/ptx.cuh"
#include "kernels/wgmma.cuh"

namespace fp8lab::cuda {

template <int kTileN>
struct Stage {
  alignas(1024) unsigned char a[kTileM * kTileBytes];
  alignas(1024) unsigned char b[kTileN * kTileBytes];
};

/// How a kernel promotes: with scales, of every column of a tile or one for each 64 columns.
template <WgmmaStep kStep, bool kBlocksB>
struct Steps {
  static constexpr bool kScaled = kStep != WgmmaStep::none && kStep != WgmmaStep::add;
  static constexpr int kColumns = kBlocksB ? kBlockColumns : 1;  ///< that share a scale
};

template <class Step, int kTileN>
struct NoScales {};
template <class Step, int kTileN>
struct StageScales {
  float a[kStepsPerStage][kTileM];
  float b[kStepsPerStage][scale_places(kTileN, Step::kColumns)];
};

/// As many stages and boxes of d as fit into the shared memory of a multiprocessor.
template <class Step, int kTileN>
struct alignas(1024) Shared {
  static constexpr int kStages = kTileN == 128 ? (Step::kScaled ? 5 : 6) : 4;
  static constexpr int kBoxes = kTileN == 256 ? 2 : kTileN / kBoxColumns;
  using Scales =
      std::conditional_t<Step::kScaled, StageScales<Step, kTileN>, NoScales<Step, kTileN>>;
  Stage<kTileN> stages[kStages];
  Staging<kBoxes> staging[kConsumers];
  ColumnScales<kTileN> columns[kConsumers];
  alignas(16) Scales scales[kStages];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

/// Position in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- the warpgroup that copies ------------------------------------------------------------------

/// Announces the bytes of a stage, and copies the scales of the chunks with a part in it; ranges of
/// a split begin at multiples of a chunk.
template <class Step, int kTileN>
__device__ void copy_scales(const Problem& p, const Tile& tile, int k, int k_end,
                            StageScales<Step, kTileN>& scales, std::uint64_t* full) {
  constexpr int kPlaces = scale_places(kTileN, Step::kColumns);
  const int first = k / p.chunk, count = (k_end - 1) / p.chunk - first + 1;
  barrier_expect(full, sizeof(Stage<kTileN>) + count * (kTileM + kPlaces) * sizeof(float));
  for (int i = 0; i < count; ++i) {
    const std::int64_t chunk = first + i;
    copy_bytes(scales.a[i], p.step_a + chunk * p.tiles_m * kTileM + tile.m0, sizeof(scales.a[i]),
               full);
    copy_bytes(scales.b[i], p.step_b + (chunk * p.tiles_n + tile.n0 / kTileN) * kPlaces,
               sizeof(scales.b[i]), full);
  }
}

template <int kBytes, class Step, int kTileN>
__device__ void copy_operands(const Problem& p, const CUtensorMap* map_a, const CUtensorMap* map_b,
                              Shared<Step, kTileN>& shared) {
  constexpr int kTileK = kTileBytes / kBytes;
  Ring<Shared<Step, kTileN>::kStages> ring;
  for (Walk walk(p); !walk.done(); walk.next()) {
    const Tile tile = walk.tile();
    for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring.advance()) {
      Stage<kTileN>& stage = shared.stages[ring.stage];
      std::uint64_t* full = &shared.full[ring.stage];
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      if constexpr (Step::kScaled) {
        copy_scales<Step, kTileN>(p, tile, k, min(k + kTileK, tile.k_end),
                                  shared.scales[ring.stage], full);
      } else {
        barrier_expect(full, sizeof(stage));
      }
      copy_box(stage.a, map_a, full, k, tile.m0);
      if (p.cluster == 1) {
        copy_box(stage.b, map_b, full, k, tile.n0);
      } else {
        constexpr int kHalf = kTileN / kMaxCluster;
        copy_box_to(stage.b + walk.rank() * kHalf * kTileBytes, map_b, full, k,
                    tile.n0 + walk.rank() * kHalf, (1 << kMaxCluster) - 1);
      }
    }
  }
}

// --- the warpgroups that multiply ---------------------------------------------------------------

/// sum = promote(sum, partial) with the scales of one chunk (numerics.md section 6.2). Those of
/// this thread's rows and columns are read while the products are still under way.
template <WgmmaStep kStep, bool kBlocksB, int kTileN>
class Promotion {
 public:
  using Step = Steps<kStep, kBlocksB>;
  __device__ Promotion(const StageScales<Step, kTileN>& scales, int slot,
                       const Fragment& fragment) {
    a_[0] = scales.a[slot][fragment.row];
    a_[1] = scales.a[slot][fragment.row + 8];
    if constexpr (kBlocksB) {
#pragma unroll
      for (int j = 0; j < kB; ++j) b_[j] = scales.b[slot][j];
    } else {
      const float* own = scales.b[slot] + fragment.column / 2 * scale_thread_stride(kTileN);
#pragma unroll
      for (int j = 0; j < kB; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(own + j);
        b_[j] = four.x, b_[j + 1] = four.y, b_[j + 2] = four.z, b_[j + 3] = four.w;
      }
    }
  }

  __device__ Promotion(const NoScales<Step, kTileN>&, int, const Fragment&) {}

  __device__ void add(const float (&partial)[kTileN / 2], float (&sum)[kTileN / 2]) const {
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      if constexpr (kStep == WgmmaStep::add) {
        sum[i] = __fadd_rn(sum[i], partial[i]);
      } else {
        const float sa = a_[i / 2 % 2], sb = b(i);
        if constexpr (kStep == WgmmaStep::b_then_a) {
          sum[i] = __fmaf_rn(__fmul_rn(partial[i], sb), sa, sum[i]);
        } else if constexpr (kStep == WgmmaStep::a_then_b) {
          sum[i] = __fmaf_rn(__fmul_rn(partial[i], sa), sb, sum[i]);
        } else {
          sum[i] = __fmaf_rn(partial[i], __fmul_rn(sa, sb), sum[i]);
        }
      }
    }
  }

 private:
  static constexpr int kB = !Step::kScaled ? 1 : kBlocksB ? kTileN / kBlockColumns : kTileN / 4;
  /// Scale of the column of element i.
  __device__ float b(int i) const {
    return kBlocksB ? b_[i / 4 / (kBlockColumns / 8)] : b_[i / 4 * 2 + i % 2];
  }
  float a_[2];
  float b_[kB];
};

/// The turns of the two warpgroups: each issues its products after the other one has issued its
/// own, so that one adds up or writes while the other multiplies.
class Turns {
 public:
  __device__ Turns() : own_(threadIdx.x / kWarpgroup) {
    if (own_ == 1) pass();
  }
  __device__ void wait() const { named_sync(kFirst + own_, kConsumers * kWarpgroup); }
  __device__ void pass() const { named_arrive(kFirst + 1 - own_, kConsumers * kWarpgroup); }
  /// Takes up the last turn that nobody waits for.
  __device__ void finish() const {
    if (own_ == 0) wait();
  }

 private:
  static constexpr int kFirst = 1 + kConsumers;  ///< behind the barriers of the epilogue
  int own_;
};

/// One consumer thread's state and the ways to multiply a tile.
template <WgmmaTypes kTypes, WgmmaStep kStep, bool kBlocksB, int kTileN>
class Consumer {
 public:
  static constexpr int kBytes = kTypes == WgmmaTypes::bf16 ? 2 : 1;
  using Step = Steps<kStep, kBlocksB>;
  using Memory = Shared<Step, kTileN>;
  using Sum = float[kTileN / 2];

  __device__ Consumer(const Problem& p, Memory& shared) : p_(p), shared_(shared) {}

  /// Arrivals that give a stage back.
  __device__ static std::uint32_t releases(const Problem& p) {
    constexpr int kEach = Step::kScaled ? kWarpgroup : kWarpgroup / 32;
    return static_cast<std::uint32_t>(p.cluster * kConsumers * kEach);
  }

  __device__ void run(const CUtensorMap* map_d) {
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    const Fragment fragment;
    for (Walk walk(p_); !walk.done(); walk.next()) {
      const TileScales<kTileN> scales(p_, walk.tile(), fragment);
      Sum sum;
      if constexpr (kStep == WgmmaStep::none) {
        multiply_fast(walk.tile(), sum);
      } else if (p_.chunk_steps == kStepsPerStage) {
        multiply_stages(walk.tile(), fragment, sum);
      } else {
        multiply_promoted(walk.tile(), fragment, sum);
      }
      write_tile(p_, map_d, walk.tile(), sum, fragment, scales, shared_.columns[warpgroup],
                 shared_.staging[warpgroup]);
    }
    turns_.finish();
    if (threadIdx.x % kWarpgroup == 0) store_wait_all();
  }

 private:
  static constexpr int kTileK = kTileBytes / kBytes;

  __device__ std::uint64_t a_descriptor() const {
    return operand_descriptor(shared_.stages[ring_.stage].a +
                              threadIdx.x / kWarpgroup * 64 * kTileBytes);
  }
  __device__ std::uint64_t b_descriptor() const {
    return operand_descriptor(shared_.stages[ring_.stage].b);
  }
  /// Gives a stage back to every block that copies into it: scales were read thread by thread,
  /// operands by whole warps.
  __device__ void release(int stage) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (Step::kScaled) {
      barrier_arrive(&shared_.empty[stage]);
    } else if (p_.cluster == 1) {
      if (lane == 0) barrier_arrive(&shared_.empty[stage]);
    } else if (lane < kMaxCluster) {
      barrier_arrive_at(&shared_.empty[stage], static_cast<std::uint32_t>(lane));
    }
  }
  /// One chain over the whole range: a stage is released when the next one's products are under
  /// way.
  __device__ void multiply_fast(const Tile& tile, Sum& sum) {
    int previous = -1;
    for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring_.advance()) {
      barrier_wait(&shared_.full[ring_.stage], ring_.parity);
      const std::uint64_t a = a_descriptor(), b = b_descriptor();
      turns_.wait();
      keep(sum);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kStepsPerStage; ++s) {
        wgmma<kTypes, kTileN>(sum, a + 2 * s, b + 2 * s, s > 0 || k > tile.k_begin);
      }
      wgmma_commit();
      turns_.pass();
      keep(sum);
      if (previous >= 0) {
        wgmma_wait<1>();
        release(previous);
      }
      previous = ring_.stage;
    }
    wgmma_wait<0>();
    keep(sum);
    release(previous);
  }

  /// Chains of one stage each, promoted into `sum`.
  __device__ void multiply_stages(const Tile& tile, const Fragment& fragment, Sum& sum) {
    Sum partial;
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) sum[i] = 0.0f;
    for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring_.advance()) {
      barrier_wait(&shared_.full[ring_.stage], ring_.parity);
      const std::uint64_t a = a_descriptor(), b = b_descriptor();
      turns_.wait();
      keep(partial);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kStepsPerStage; ++s) {  // past the end of K all products are zeros
        wgmma<kTypes, kTileN>(partial, a + 2 * s, b + 2 * s, s > 0);
        wgmma_commit();
      }
      const Promotion<kStep, kBlocksB, kTileN> promotion(shared_.scales[ring_.stage], 0, fragment);
      wgmma_wait<2>();
      turns_.pass();
      wgmma_wait<0>();
      keep(partial);
      release(ring_.stage);
      promotion.add(partial, sum);
    }
  }

  /// Chains of chunk_steps instructions, promoted into `sum`.
  __device__ void multiply_promoted(const Tile& tile, const Fragment& fragment, Sum& sum) {
    constexpr int kStepK = 32 / kBytes;
    Sum partial;
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) sum[i] = 0.0f;
    int in_chunk = 0;
    for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring_.advance()) {
      barrier_wait(&shared_.full[ring_.stage], ring_.parity);
      const std::uint64_t a = a_descriptor(), b = b_descriptor();
      const int steps = min(kStepsPerStage, (tile.k_end - k + kStepK - 1) / kStepK);
      int slot = 0;
      for (int s = 0; s < steps;) {
        const int until = min(steps, s + p_.chunk_steps - in_chunk);
        keep(partial);
        wgmma_fence();
        for (; s < until; ++s, ++in_chunk) {
          wgmma<kTypes, kTileN>(partial, a + 2 * s, b + 2 * s, in_chunk > 0);
        }
        wgmma_commit();
        const bool complete = in_chunk == p_.chunk_steps || k + s * kStepK >= tile.k_end;
        const Promotion<kStep, kBlocksB, kTileN> promotion(shared_.scales[ring_.stage],
                                                           complete ? slot : 0, fragment);
        wgmma_wait<0>();
        keep(partial);
        if (s == steps) release(ring_.stage);
        if (!complete) continue;
        promotion.add(partial, sum);
        in_chunk = 0;
        ++slot;
      }
    }
  }

  const Problem& p_;
  Memory& shared_;
  Ring<Memory::kStages> ring_;
  Turns turns_;
};

template <WgmmaTypes kTypes, WgmmaStep kStep, bool kBlocksB, int kTileN>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ CUtensorMap map_d, const __grid_constant__ Problem p) {
  using Multiply = Consumer<kTypes, kStep, kBlocksB, kTileN>;
  using Memory = typename Multiply::Memory;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Memory*>(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Memory::kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], Multiply::releases(p));
    }
    barrier_init_fence();
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    prefetch_map(&map_d);
  }
  __syncthreads();
  if (p.cluster > 1) cluster_sync();
  wait_for_earlier_kernels();

  const int thread = static_cast<int>(threadIdx.x) - kConsumers * kWarpgroup;
  if (thread >= 0) {
    lower_registers<40>();
    if (thread == 0) copy_operands<Multiply::kBytes>(p, &map_a, &map_b, shared);
  } else {
    raise_registers<232>();
    Multiply(p, shared).run(&map_d);
  }
  // A block must not leave while another one still copies into its memory or arrives there.
  __syncwarp();
  if (p.cluster > 1) cluster_sync();
}

// --- host ---------------------------------------------------------------------------------------

template <WgmmaTypes kTypes, WgmmaStep kStep, bool kBlocksB, int kTileN>
void launch_tile(Context& context, const WgmmaGemm& gemm, const Problem& problem) {
  using Multiply = Consumer<kTypes, kStep, kBlocksB, kTileN>;
  constexpr int kMemory = static_cast<int>(sizeof(typename Multiply::Memory));
  static_assert(kMemory <= 227 * 1024);
  const auto kernel = gemm_kernel<kTypes, kStep, kBlocksB, kTileN>;
  static const bool prepared = [kernel] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory),
          "cudaFuncSetAttribute");
    return true;
  }();
  (void)prepared;
  const CUtensorMap a =
      operand_map(gemm.a, Multiply::kBytes, gemm.m, gemm.k, gemm.a_stride, kTileM);
  const CUtensorMap b = operand_map(gemm.b, Multiply::kBytes, gemm.n, gemm.k, gemm.b_stride,
                                    kTileN / problem.cluster);
  const int tiles = problem.tiles_m * problem.tiles_n * problem.splits;
  const int room = context.multiprocessors() / problem.cluster * problem.cluster;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, room)));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kMemory;
  config.stream = context.stream();
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(problem.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, a, b, output_map(problem), problem), "gemm_wgmma");
}

template <WgmmaTypes kTypes>
void launch_types(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  constexpr bool kWide = wide_tiles(kTypes);
  const auto launch = [&]<WgmmaStep kStep, bool kBlocksB, int kTileN>() {
    launch_tile<kTypes, kStep, kBlocksB, kTileN>(context, gemm, p);
  };
  if (gemm.step == WgmmaStep::none) {
    if constexpr (kWide) {
      if (p.tile_n == 256) return launch.template operator()<WgmmaStep::none, false, 256>();
      if (p.tile_n == 192) return launch.template operator()<WgmmaStep::none, false, 192>();
    }
    return launch.template operator()<WgmmaStep::none, false, 128>();
  }
  if (gemm.step == WgmmaStep::add) {
    if constexpr (kWide) {
      if (p.tile_n == 192) return launch.template operator()<WgmmaStep::add, false, 192>();
    }
    return launch.template operator()<WgmmaStep::add, false, 128>();
  }
  if constexpr (kTypes != WgmmaTypes::bf16) {  // bf16 has no scales
    if (gemm.step == WgmmaStep::b_then_a) {
      return launch.template operator()<WgmmaStep::b_then_a, false, 128>();
    }
    if (gemm.step == WgmmaStep::a_then_b) {
      return launch.template operator()<WgmmaStep::a_then_b, false, 128>();
    }
    if (p.blocks_b) {
      if constexpr (kWide) {
        if (p.tile_n == 192)
          return launch.template operator()<WgmmaStep::product_first, true, 192>();
      }
      return launch.template operator()<WgmmaStep::product_first, true, 128>();
    }
    return launch.template operator()<WgmmaStep::product_first, false, 128>();
  }
}

}  // namespace fp8lab::cuda
