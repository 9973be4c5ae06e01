// The wgmma GEMM: kernels, and their launch for one pair of operand types. One source file for each
// pair includes this header, so that the pairs compile in parallel.
//
//   A, B, scales in global memory
//        |  TMA (cp.async.bulk.tensor): one thread of the producer warpgroup; with a cluster of two
//        |  blocks each copies half of B and multicasts it to both
//        v
//   +---------+---------+---------+     shared memory, kStages stages of 128 bytes of K:
//   | stage 0 | stage 1 |   ...   |     A (kTileM, 128 B), B (kTileN, 128 B), scales of the chunk
//   +---------+---------+---------+
//     full[s]: bytes have arrived (producer -> consumers)
//     empty[s]: every consumer warp, of both blocks of a cluster, has read it (-> producer)
//        |
//        v  wgmma m64nNk32 (k16 for bf16), D in registers: FP32, for s8 32-bit integers
//   consumer warpgroups (2 or 3, 64 or 128 rows each): partial = chain over one chunk of K
//        |
//        v  promotion on the CUDA cores: sum = fma(partial * sB, sA, sum), by ScaleOrder
//   epilogue: scales, bias, beta C, one rounding; through shared memory and TMA, or directly
//
// How products and promotion overlap (Chains):
//   one         no promotion; a stage is released when the next one's products are in flight
//   ping_pong   warpgroup 0: | products | promotion | products | promotion |
//               warpgroup 1:            | products | promotion | products | ...
//   overlapped  one warpgroup, two sets of partial sums: products of stage s + 1 run while the sums
//               of stage s are promoted
//   any_length  chains that are not whole stages: products, wait, promotion
//
// TileScheduler assigns tiles to blocks. Whole tiles come first. If the last round would
// leave blocks idle, its tiles are divided along K (stream-K): the block that begins such
// a tile hands its sums over to the block that ends it, which continues in the same
// order, so that no bit changes.
#pragma once

#include "kernels/gemm/gemm_epilogue.cuh"
#include "kernels/gemm/gemm_handover.cuh"
#include "kernels/gemm/gemm_launch.cuh"
#include "kernels/gemm/gemm_problem.cuh"
#include "kernels/gemm/gemm_stages.cuh"
#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace fp8lab::cuda {

/// sum = promote(sum, partial) with the scales of one chunk (emulation/specification.md, "K
/// schedules and scale orders"). The scales of this thread's rows and of blocks of columns are read
/// before the additions. The scales of single columns are read before only if kHoldsColumns,
/// otherwise during the additions, because registers are scarce.
template <class P>
class Promotion {
 public:
  /// True if `add` still needs the scales in shared memory.
  static constexpr bool kReadsLate = P::kScaled && !P::kBlocksB && !P::kHoldsColumns;
  using Sum = float[P::kTileN / 2];

  /// Reads the scales for rows of the tile from `row` on; with the first block also those of
  /// columns, which all row blocks share.
  __device__ void read(const ChunkScales<P>& scales, int row, const Fragment& fragment, int block) {
    a_[0] = scales.a[row + fragment.row];
    a_[1] = scales.a[row + fragment.row + 8];
    if (block > 0) return;
    if constexpr (P::kBlocksB) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) b_[j] = scales.b[j];
    } else {
      columns_ = scales.b + fragment.column / 2 * scale_thread_stride(P::kTileN);
#pragma unroll
      for (int j = 0; j < kHeld; ++j) held_[j] = column_scales(j);
    }
  }
  __device__ void read(const NoScales<P>&, int, const Fragment&, int) {}

  __device__ void add(const Sum& partial, Sum& sum) const {
#pragma unroll
    for (int i = 0; i < P::kTileN / 2; i += 8) {
      float4 sb{};
      if constexpr (P::kHoldsColumns) sb = held_[i / 8];
      if constexpr (kReadsLate) sb = column_scales(i / 8);
      if constexpr (P::kBlocksB) {
        const float block = b_[i / 4 / (kBlockColumns / 8)];
        sb = {block, block, block, block};
      }
      add_two(partial + i, sb.y, sb.x, sum + i);  // pairs are swapped, see scale_thread_stride
      add_two(partial + i + 4, sb.w, sb.z, sum + i + 4);
    }
  }

 private:
  static constexpr int kBlocks = P::kTileN / kBlockColumns;
  static constexpr int kHeld = P::kHoldsColumns ? P::kTileN / 16 : 0;

  __device__ float4 column_scales(int j) const {
    return *reinterpret_cast<const float4*>(columns_ + 4 * j);
  }
  /// Adds two neighbouring columns with scales b0 and b1, in both rows.
  __device__ void add_two(const float* partial, float b0, float b1, float* sum) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[2 * r] = promoted(sum[2 * r], partial[2 * r], a_[r], b0);
      sum[2 * r + 1] = promoted(sum[2 * r + 1], partial[2 * r + 1], a_[r], b1);
    }
  }
  __device__ static float promoted(float sum, float partial, float a, float b) {
    if constexpr (!P::kScaled) {
      return __fadd_rn(sum, partial);
    } else if constexpr (P::kOrder == numerics::ScaleOrder::b_then_a) {
      return __fmaf_rn(yielding_product(partial, b), a, sum);
    } else if constexpr (P::kOrder == numerics::ScaleOrder::a_then_b) {
      return __fmaf_rn(yielding_product(partial, a), b, sum);
    } else {
      return __fmaf_rn(partial, __fmul_rn(a, b), sum);
    }
  }

  float a_[2];
  float b_[kBlocks];
  float4 held_[kHeld > 0 ? kHeld : 1];
  const float* columns_;
};

/// The order in which warpgroups issue the products of Chains::one. Each warpgroup issues after the
/// previous one has issued, so that one writes its tile while another multiplies. Warpgroup w waits
/// at named barrier kFirst + w, where the previous warpgroup arrives.
template <int kConsumers>
class OrderBarrier {
 public:
  __device__ explicit OrderBarrier(int warpgroup) : own_(warpgroup) {}
  __device__ void begin() const {
    if (own_ == kConsumers - 1) pass();
  }
  __device__ void wait() const { named_sync(kFirst + own_, 2 * kWarpgroup); }
  __device__ void pass() const { named_arrive(kFirst + (own_ + 1) % kConsumers, 2 * kWarpgroup); }
  /// Waits for the last arrival, which would otherwise remain pending in the barrier.
  __device__ void finish() const {
    if (own_ == 0) wait();
  }

 private:
  static constexpr int kFirst = 1 + kConsumers;  ///< after the barriers of the epilogue
  int own_;
};

/// The state of one consumer thread, and the ways to multiply a tile.
template <class P>
class Consumer {
 public:
  using Sum = WgmmaSum<P::kTypes>[P::kTileN / 2];

  __device__ Consumer(const Problem& p, Shared<P>& shared, int warpgroup, int rank)
      : p_(p), shared_(shared), warpgroup_(warpgroup), rank_(rank), order_(warpgroup) {}

  /// Returns the number of arrivals that release a stage.
  __device__ static std::uint32_t releases(const Problem& p) {
    return static_cast<std::uint32_t>(p.tiling.cluster * P::kConsumers * (kWarpgroup / 32));
  }

  __device__ void run(const CUtensorMap* map_d) {
    const Fragment fragment;
    if constexpr (kOrdered) order_.begin();
    for (TileScheduler scheduler(p_, rank_); !scheduler.done();) {
      Tile tile = scheduler.tile();
      tile.m0 += warpgroup_ * P::kRows;  // from here on this warpgroup's first row
      Scales scales;
      Sums sums;
      if (tile.resumes) take_over_sums(p_, warpgroup_, sums);
      multiply(tile, fragment, sums, [&] {
        scales.load(p_, tile, fragment);
        if constexpr (kLooksAhead) scheduler.next();
      });
      if (tile.hands_over) {
        hand_over_sums(p_, warpgroup_, sums);
      } else {
        write(map_d, tile, sums, fragment, scales);
      }
      if constexpr (!kLooksAhead) scheduler.next();
    }
    if constexpr (kOrdered) order_.finish();
    if (threadIdx.x % kWarpgroup == 0) store_wait_all();
  }

 private:
  static constexpr bool kOrdered = P::kChains == Chains::one;
  /// True if the scheduler computes the next tile while products are in flight, because
  /// its divisions would delay the next products. With ping_pong another warpgroup
  /// multiplies during that time.
  static constexpr bool kLooksAhead = P::kChains == Chains::one || P::kChains == Chains::overlapped;
  static constexpr int kStepK = 32 / P::kBytes;
  static constexpr bool kRowsA = P::kRowsA, kRowsB = P::kRowsB;

  using Scales = TileScales<P::kTileN, !P::kScaled>;
  using Sums = Sum[P::kRowBlocks];

  /// Writes a tile; integers are first rounded to FP32.
  __device__ void write(const CUtensorMap* map_d, const Tile& tile, const Sums& sums,
                        const Fragment& fragment, const Scales& scales) const {
    if constexpr (P::kTypes == WgmmaTypes::s8) {
      float rounded[P::kRowBlocks][P::kTileN / 2];
#pragma unroll
      for (int block = 0; block < P::kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < P::kTileN / 2; ++i) rounded[block][i] = __int2float_rn(sums[block][i]);
      }
      write_tile<P::kTileN>(p_, map_d, tile, rounded, fragment, scales, shared_.columns[warpgroup_],
                            shared_.staging[warpgroup_]);
    } else {
      write_tile<P::kTileN>(p_, map_d, tile, sums, fragment, scales, shared_.columns[warpgroup_],
                            shared_.staging[warpgroup_]);
    }
  }

  /// Computes the products of a tile, and adds them to `sums` if the tile resumes another block's.
  /// Calls `meanwhile` once; if kLooksAhead, while the first products are in flight.
  template <class Meanwhile>
  __device__ void multiply(const Tile& tile, const Fragment& fragment, Sums& sums,
                           const Meanwhile& meanwhile) {
    ring_.stage = uniform(ring_.stage);
    ring_.parity = uniform(ring_.parity);
    if constexpr (P::kChains == Chains::one) {
      multiply_one(tile, sums[0], meanwhile);
    } else {
      if (!tile.resumes) {
#pragma unroll
        for (Sum& sum : sums) {
#pragma unroll
          for (float& value : sum) value = 0.0f;
        }
      }
      if constexpr (P::kChains == Chains::overlapped) {
        multiply_overlapped(tile, fragment, sums[0], meanwhile);
      } else {
        meanwhile();
        if constexpr (P::kChains == Chains::ping_pong) {
          multiply_ping_pong(tile, fragment, sums);
        } else {
          multiply_any_length(tile, fragment, sums[0]);
        }
      }
    }
  }

  /// Returns the first row of a row block in the tile.
  __device__ int first_row(int block) const { return warpgroup_ * P::kRows + 64 * block; }
  __device__ std::uint64_t a_descriptor(int block) const {
    return operand_descriptor<kRowsA>(shared_.stages[ring_.stage].a +
                                      first_row(block) * kTileBytes);
  }
  __device__ std::uint64_t b_descriptor() const {
    return operand_descriptor<kRowsB>(shared_.stages[ring_.stage].b);
  }
  __device__ bool is_filled() const {
    return barrier_passed(&shared_.full[ring_.stage], ring_.parity);
  }
  __device__ void await_stage() const { barrier_wait(&shared_.full[ring_.stage], ring_.parity); }
  /// Issues the products of a stage in a row block; past the end of K all are zero. `add`:
  /// adds to the contents of d.
  __device__ void issue_stage(Sum& d, bool add, int block = 0) const {
    const std::uint64_t a = a_descriptor(block), b = b_descriptor();
    keep(d);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kStepsPerStage; ++s) {
      wgmma<P::kTypes, P::kTileN, P::kOrders>(d, a + kDescriptorStep<kRowsA> * s,
                                              b + kDescriptorStep<kRowsB> * s, s > 0 || add);
    }
    wgmma_commit();
  }
  /// Releases a stage to every block that copies into it. Precondition: the warp's
  /// lanes have read its scales.
  __device__ void release(int stage) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (P::kScaled) __syncwarp();
    std::uint64_t* const empty = &shared_.empty[stage];
    const bool alone = P::kChains == Chains::ping_pong || p_.tiling.cluster == 1;
    barrier_arrive_if(alone && lane == 0, empty);
    if constexpr (P::kChains != Chains::ping_pong) {
      barrier_arrive_at_if(!alone && lane < kMaxCluster, empty, static_cast<std::uint32_t>(lane));
    }
  }

  __device__ static int stages_of(const Tile& tile) {
    return (tile.k_end - tile.k_begin + P::kTileK - 1) / P::kTileK;
  }
  /// Waits for the next stage, issues its products and returns its number.
  __device__ int issue_next(Sum& d, bool add) {
    const int stage = ring_.stage;
    await_stage();
    if constexpr (P::kChains == Chains::one) order_.wait();
    issue_stage(d, add);
    if constexpr (P::kChains == Chains::one) order_.pass();
    ring_.advance();
    return stage;
  }

  /// Multiplies one chain over the whole range; a stage is released when the next one's products
  /// are in flight. The first products are issued before the loop, so that inside the loop only
  /// products define the sums: otherwise the compiler waits after each of them.
  template <class Meanwhile>
  __device__ void multiply_one(const Tile& tile, Sum& sum, const Meanwhile& meanwhile) {
    int stages = stages_of(tile);
    if (stages == 0) {  // K = 0
      for (auto& value : sum) value = 0;
      return meanwhile();
    }
    int previous = issue_next(sum, tile.resumes);
    meanwhile();
    while (--stages > 0) {
      const int stage = issue_next(sum, true);
      keep(sum);
      wgmma_wait<1>();
      release(previous);
      previous = stage;
    }
    wgmma_wait<0>();
    keep(sum);
    release(previous);
  }

  /// Multiplies with ping-pong: while one warpgroup promotes, the products of the others are in
  /// flight. Each warpgroup issues its own as soon as its partial sums are free. Scales are read
  /// first, because reads from shared memory queue behind issued products. The next stage's barrier
  /// is tested before the additions, which hide its latency.
  __device__ void multiply_ping_pong(const Tile& tile, const Fragment& fragment, Sums& sums) {
    Sum partial;
    Promotion<P> promotion;
    bool filled = is_filled();
    for (int stages = stages_of(tile); stages > 0; --stages) {
      if (!filled) await_stage();
      const int stage = ring_.stage;
#pragma unroll
      for (int block = 0; block < P::kRowBlocks; ++block) {
        const bool last = block == P::kRowBlocks - 1;
        promotion.read(shared_.scales[stage][0], first_row(block), fragment, block);
        issue_stage(partial, false, block);
        wgmma_wait<0>();
        keep(partial);
        if (last && !Promotion<P>::kReadsLate) release(stage);
        if (last) {
          ring_.advance();
          filled = is_filled();
        }
        promotion.add(partial, sums[block]);
        if (last && Promotion<P>::kReadsLate) release(stage);
      }
    }
  }

  template <class Meanwhile>
  __device__ void multiply_overlapped(const Tile& tile, const Fragment& fragment, Sum& sum,
                                      const Meanwhile& meanwhile) {
    Sum even, odd;
    int stages = stages_of(tile);
    if (stages == 0) return meanwhile();
    int previous = issue_next(even, false);
    meanwhile();
    while (true) {
      if (--stages == 0) return promote_one<0>(even, sum, fragment, previous);
      const int stage = issue_next(odd, false);
      promote_one<1>(even, sum, fragment, previous);
      if (--stages == 0) return promote_one<0>(odd, sum, fragment, stage);
      previous = issue_next(even, false);
      promote_one<1>(odd, sum, fragment, stage);
    }
  }
  template <int kPending>
  __device__ void promote_one(Sum& partial, Sum& sum, const Fragment& fragment, int stage) const {
    Promotion<P> promotion;
    promotion.read(shared_.scales[stage][0], first_row(0), fragment, 0);
    wgmma_wait<kPending>();
    keep(partial);
    release(stage);
    promotion.add(partial, sum);
  }

  /// Multiplies with chains of chunk_steps instructions.
  __device__ void multiply_any_length(const Tile& tile, const Fragment& fragment, Sum& sum) {
    Sum partial;
    int in_chunk = 0;
    for (int k = tile.k_begin; k < tile.k_end; k += P::kTileK, ring_.advance()) {
      await_stage();
      const std::uint64_t a = a_descriptor(0), b = b_descriptor();
      const int steps = min(kStepsPerStage, (tile.k_end - k + kStepK - 1) / kStepK);
      int slot = 0;
      for (int s = 0; s < steps;) {
        const int until = min(steps, s + p_.chunk_steps - in_chunk);
        keep(partial);
        wgmma_fence();
        for (; s < until; ++s, ++in_chunk) {
          wgmma<P::kTypes, P::kTileN, P::kOrders>(partial, a + kDescriptorStep<kRowsA> * s,
                                                  b + kDescriptorStep<kRowsB> * s, in_chunk > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        keep(partial);
        if (in_chunk < p_.chunk_steps && k + s * kStepK < tile.k_end) continue;
        Promotion<P> promotion;
        promotion.read(shared_.scales[ring_.stage][slot], first_row(0), fragment, 0);
        promotion.add(partial, sum);
        in_chunk = 0;
        ++slot;
      }
      release(ring_.stage);
    }
  }

  const Problem& p_;
  Shared<P>& shared_;
  int warpgroup_, rank_;
  Ring<P::kStages> ring_;
  OrderBarrier<P::kConsumers> order_;
};

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    gemm_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = held_shared<Shared<P>>(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < P::kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], Consumer<P>::releases(p));
    }
    barrier_init_fence();
    prefetch_map(&maps.a);
    prefetch_map(&maps.b);
    prefetch_map(&maps.d);
  }
  __syncthreads();
  if (p.tiling.cluster > 1) cluster_sync();
  // After the kernel that orders scales, only the copies of scales wait: all
  // earlier kernels are done.
  if (!P::kScaled) wait_for_earlier_kernels();

  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int rank = p.tiling.cluster == 1 ? 0 : uniform(static_cast<int>(cluster_rank()));
  if (warpgroup == P::kConsumers) {
    lower_registers<P::kCopyRegisters>();
    if (threadIdx.x % kWarpgroup == 0) copy_operands<P>(p, maps, rank, shared);
  } else {
    raise_registers<P::kRegisters>();
    Consumer<P>(p, shared, warpgroup, rank).run(&maps.d);
  }
  // A block must not exit while another block still copies into its memory
  // or arrives at its barriers.
  __syncwarp();
  if (p.tiling.cluster > 1) cluster_sync();
}

// --- host ---------------------------------------------------------------------------------------

template <class P>
void launch_plan(Context& context, const WgmmaGemm& gemm, const Problem& problem) {
  constexpr int kMemory = static_cast<int>(sizeof(Shared<P>));
  static_assert(kMemory <= 227 * 1024);
  const auto kernel = gemm_kernel<P>;
  static const bool prepared = [kernel] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory),
          "cudaFuncSetAttribute");
    return true;
  }();
  (void)prepared;
  const int cluster = problem.tiling.cluster;
  Maps maps{};
  maps.a = P::kRowsA ? row_block_map(gemm.a, gemm.m, gemm.k, gemm.a_stride)
                     : operand_map(gemm.a, P::kBytes, gemm.m, gemm.k, gemm.a_stride, P::kTileM);
  maps.b = P::kRowsB
               ? row_block_map(gemm.b, gemm.n, gemm.k, gemm.b_stride)
               : operand_map(gemm.b, P::kBytes, gemm.n, gemm.k, gemm.b_stride, P::kTileN / cluster);
  maps.d = output_map(problem, P::kBoxColumns);
  if constexpr (P::kScaled) {
    maps.step_a = scale_map(problem, problem.step_a, problem.tiles_m * P::kTileM, P::kTileM);
    maps.step_b = scale_map(problem, problem.step_b, problem.tiles_n * P::kPlaces, P::kPlaces);
  }
  const int tiles = problem.tiles_m * problem.tiles_n * problem.splits;
  const int room = context.multiprocessors() / cluster * cluster;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, room)));
  config.blockDim = dim3(P::kThreads);
  config.dynamicSmemBytes = kMemory;
  config.stream = context.stream();
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  // Without K no kernel orders scales, so this kernel would not wait for the earlier ones.
  attributes[1].val.programmaticStreamSerializationAllowed = !P::kScaled || problem.k > 0;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, maps, problem), "gemm_wgmma");
}

/// Launches kernels that promote with one order of the scales.
template <WgmmaTypes kTypes, numerics::ScaleOrder kOrder>
void launch_order(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  if constexpr (has_choice(kTypes)) {
    if (p.tiling.chains == Chains::ping_pong) {
      if constexpr (kOrder == numerics::ScaleOrder::product_first) {
        if (p.blocks_b)
          return launch_plan<Plan<kTypes, kOrder, true, Chains::ping_pong, 3, 128>>(context, gemm,
                                                                                    p);
      }
      if constexpr (multiplies_columns(kOrder)) {
        if (p.tiling.tile_m == 256)
          return launch_plan<Plan<kTypes, kOrder, false, Chains::ping_pong, 2, 128, 2>>(context,
                                                                                        gemm, p);
      }
      return launch_plan<Plan<kTypes, kOrder, false, Chains::ping_pong, 3, 128>>(context, gemm, p);
    }
    if constexpr (!numerics::scales_promotion(kOrder)) {
      if (p.tiling.chains == Chains::overlapped)
        return launch_plan<Plan<kTypes, kOrder, false, Chains::overlapped, 2, 128>>(context, gemm,
                                                                                    p);
    }
  }
  launch_plan<Plan<kTypes, kOrder, false, Chains::any_length, 2, 128>>(context, gemm, p);
}

/// Launches kernels with one chain over the whole range.
template <WgmmaTypes kTypes, WgmmaOrders kOrders>
void launch_one_chain(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  const auto launch = [&]<int kTileN>() {
    constexpr auto kOrder = numerics::ScaleOrder::epilogue;
    launch_plan<Plan<kTypes, kOrder, false, Chains::one, 2, kTileN, 1, kOrders>>(context, gemm, p);
  };
  if constexpr (has_choice(kTypes)) {
    if (p.tiling.tile_n == 256) return launch.template operator()<256>();
    if (p.tiling.tile_n == 192) return launch.template operator()<192>();
  }
  if constexpr (has_choice(kTypes) && !b_by_rows(kOrders)) {
    if (p.tiling.tile_n == 160) return launch.template operator()<160>();
  }
  launch.template operator()<128>();
}

template <WgmmaTypes kTypes>
void launch_types(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  using numerics::ScaleOrder;
  if (gemm.promoted) {
    if constexpr (kTypes != WgmmaTypes::bf16) {  // launch_scaled_bf16
      switch (gemm.order) {
        case ScaleOrder::b_then_a:
          return launch_order<kTypes, ScaleOrder::b_then_a>(context, gemm, p);
        case ScaleOrder::a_then_b:
          return launch_order<kTypes, ScaleOrder::a_then_b>(context, gemm, p);
        case ScaleOrder::product_first:
          return launch_order<kTypes, ScaleOrder::product_first>(context, gemm, p);
        default: break;
      }
    }
    return launch_order<kTypes, ScaleOrder::epilogue>(context, gemm, p);
  }
  launch_one_chain<kTypes, WgmmaOrders::k_k>(context, gemm, p);
}

}  // namespace fp8lab::cuda
