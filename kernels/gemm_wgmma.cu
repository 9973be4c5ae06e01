#include "kernels/gemm_wgmma.hpp"

#include <cuda_bf16.h>

#include <algorithm>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/schedule.hpp"
#include "kernels/ptx.cuh"

namespace fp8lab::cuda {
namespace {

// One block computes tiles of 128 x 128: two warpgroups of 64 rows each multiply what a third one
// copies. Each block walks over its share of the tiles, so that the copies of the next tile run
// while the last one is written.
constexpr int kTileM = 128;
constexpr int kTileN = 128;
constexpr int kTileBytes = 128;  ///< of K, in one row of a stage: the swizzle's width
constexpr int kStages = 5;
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kStepsPerStage = kTileBytes / 32;  ///< one instruction takes 32 bytes of K
constexpr int kGroupM = 8;  ///< tile rows that are walked together, so that B stays in the L2

struct Stage {
  alignas(1024) unsigned char a[kTileM * kTileBytes];
  alignas(1024) unsigned char b[kTileN * kTileBytes];
};
struct alignas(16) StageScales {
  float a[kStepsPerStage][kTileM];
  float b[kStepsPerStage][kTileN];
};
template <bool kScaled>
struct Shared {
  Stage stages[kStages];
  StageScales scales[kScaled ? kStages : 1];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

/// A ScaleGrid with the division left to do in 32 bits.
struct Grid {
  const float* data;
  int stride, rows, cols;

  /// Scales of a row of the operand; 1 where there are none.
  __device__ const float* row(int index) const {
    return data + static_cast<std::int64_t>(rows == 1 ? index : index / rows) * stride;
  }
  __device__ float at(int index) const { return data == nullptr ? 1.0f : *row(index); }
};

/// The kernel's view of a WgmmaGemm.
struct Problem {
  int m, n, k;
  int tiles_m, tiles_n, tiles;
  int chunk_steps;  ///< instructions of one chain
  int splits, range;
  /// Scales inside the sum along K, laid out by expand_kernel: one row a chunk.
  const float *step_a, *step_b;
  int chunk, padded_m, padded_n;
  Grid outer_a, outer_b;  ///< scales of the epilogue
  numerics::Epilogue epilogue;
  const void* bias;
  bool bias_bf16;
  void* d;
  std::int64_t d_stride;
  bool paired;   ///< two neighbouring columns of d can be written at once
  float* parts;  ///< (splits, m, n) when split
};

struct Tile {
  int m0, n0, k_begin, k_end, split;
};

__device__ Tile tile_of(const Problem& p, int index) {
  Tile tile;
  tile.split = index / p.tiles;
  const int i = index % p.tiles;
  const int group = i / (kGroupM * p.tiles_n);
  const int first_m = group * kGroupM;
  const int height = min(kGroupM, p.tiles_m - first_m);
  const int in_group = i - group * kGroupM * p.tiles_n;
  tile.m0 = (first_m + in_group % height) * kTileM;
  tile.n0 = in_group / height * kTileN;
  tile.k_begin = tile.split * p.range;
  tile.k_end = min(p.k, tile.k_begin + p.range);
  return tile;
}

/// Position in the ring of stages.
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

template <int kBytes, bool kScaled>
__device__ void copy_operands(const Problem& p, const CUtensorMap* map_a, const CUtensorMap* map_b,
                              Shared<kScaled>& shared) {
  constexpr int kTileK = kTileBytes / kBytes;
  Ring ring;
  for (int index = blockIdx.x; index < p.tiles * p.splits; index += gridDim.x) {
    const Tile tile = tile_of(p, index);
    for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring.advance()) {
      Stage& stage = shared.stages[ring.stage];
      std::uint64_t* full = &shared.full[ring.stage];
      // Chunks with a part in this stage; ranges of a split begin at multiples of a chunk.
      const int first = kScaled ? k / p.chunk : 0;
      const int last = kScaled ? (min(k + kTileK, tile.k_end) - 1) / p.chunk : -1;
      constexpr std::uint32_t kScaleBytes = kTileM * sizeof(float);
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      barrier_expect(full, sizeof(Stage) + (last - first + 1) * 2 * kScaleBytes);
      copy_box(stage.a, map_a, full, k, tile.m0);
      copy_box(stage.b, map_b, full, k, tile.n0);
      if constexpr (kScaled) {
        StageScales& scales = shared.scales[ring.stage];
        for (int chunk = first; chunk <= last; ++chunk) {
          const std::int64_t row = chunk;
          copy_bytes(scales.a[chunk - first], p.step_a + row * p.padded_m + tile.m0, kScaleBytes,
                     full);
          copy_bytes(scales.b[chunk - first], p.step_b + row * p.padded_n + tile.n0, kScaleBytes,
                     full);
        }
      }
    }
  }
}

/// This thread's part of a (64, 128) accumulator: element i lies in row `row` + 8 * (i / 2 % 2) and
/// column `column` + 8 * (i / 4) + i % 2 (PTX ISA, wgmma register fragment of D).
struct Fragment {
  int row, column;
  __device__ Fragment() {
    const int thread = threadIdx.x % kWarpgroup;
    row = (threadIdx.x / kWarpgroup) * 64 + thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

/// sum = promote(sum, partial) with the scales of one chunk (numerics.md section 6.2).
template <WgmmaStep kStep>
__device__ void promote(const float (&partial)[64], float (&sum)[64], const Fragment& fragment,
                        const float* scale_a, const float* scale_b) {
  if constexpr (kStep == WgmmaStep::add) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = sum[i] + partial[i];
  } else {
    const float a[2] = {scale_a[fragment.row], scale_a[fragment.row + 8]};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 b = *reinterpret_cast<const float2*>(scale_b + fragment.column + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 4 * j + 2 * r + e;
          const float sb = e == 0 ? b.x : b.y;
          if constexpr (kStep == WgmmaStep::b_then_a) {
            sum[i] = __fmaf_rn(__fmul_rn(partial[i], sb), a[r], sum[i]);
          } else if constexpr (kStep == WgmmaStep::a_then_b) {
            sum[i] = __fmaf_rn(__fmul_rn(partial[i], a[r]), sb, sum[i]);
          } else {
            sum[i] = __fmaf_rn(partial[i], __fmul_rn(a[r], sb), sum[i]);
          }
        }
      }
    }
  }
}

__device__ float bias_at(const Problem& p, int column) {
  if (p.bias_bf16) {
    return numerics::from_bf16(static_cast<const std::uint16_t*>(p.bias)[column]);
  }
  return static_cast<const float*>(p.bias)[column];
}

/// The FP32 value of an element after the epilogue of split-K (numerics.md section 6.4).
__device__ float finished(const Problem& p, float value, float sa, float sb, float c, int column) {
  if (p.bias == nullptr) return numerics::epilogue_value(p.epilogue, value, sa, sb, c, nullptr);
  const float bias = bias_at(p, column);
  return numerics::epilogue_value(p.epilogue, value, sa, sb, c, &bias);
}

__device__ void write_parts(const Problem& p, const Tile& tile, const float (&sum)[64],
                            const Fragment& fragment) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int row = tile.m0 + fragment.row + 8 * (i / 2 % 2);
    const int column = tile.n0 + fragment.column + 8 * (i / 4) + i % 2;
    if (row >= p.m || column >= p.n) continue;
    p.parts[(static_cast<std::int64_t>(tile.split) * p.m + row) * p.n + column] = sum[i];
  }
}

/// One element or two neighbouring ones of d.
struct Output {
  const Problem& p;
  bool pair;  ///< the second one is inside d

  __device__ float2 load(int row, int column) const {
    const float* at = static_cast<const float*>(p.d) + row * p.d_stride + column;
    if (pair && p.paired) return *reinterpret_cast<const float2*>(at);
    return {at[0], pair ? at[1] : 0.0f};
  }
  __device__ void store(float2 value, int row, int column) const {
    const std::int64_t at = row * p.d_stride + column;
    if (p.epilogue.output.bits() == 16) {
      auto* d = static_cast<__nv_bfloat16*>(p.d) + at;
      const __nv_bfloat162 rounded = __float22bfloat162_rn(value);  // NaN becomes 0x7FFF
      if (pair && p.paired) {
        *reinterpret_cast<__nv_bfloat162*>(d) = rounded;
      } else {
        d[0] = rounded.x;
        if (pair) d[1] = rounded.y;
      }
    } else {
      float* d = static_cast<float*>(p.d) + at;
      value = {numerics::canonical_nan(value.x), numerics::canonical_nan(value.y)};
      if (pair && p.paired) {
        *reinterpret_cast<float2*>(d) = value;
      } else {
        d[0] = value.x;
        if (pair) d[1] = value.y;
      }
    }
  }
};

/// The epilogue of a single kernel (numerics.md section 6.4), written out so that the code of 64
/// elements stays small enough for the instruction cache: v = fma(A, s, beta * c) + bias.
template <bool kAddC>
__device__ void write_elements(const Problem& p, const Tile& tile, const float (&sum)[64],
                               const Fragment& fragment) {
  const bool outer = p.epilogue.scales == numerics::EpilogueScales::outer;
  const int row0 = tile.m0 + fragment.row;
  float s = p.epilogue.alpha;
  if (!outer) s = __fmul_rn(__fmul_rn(s, p.outer_a.at(0)), p.outer_b.at(0));
  const float sa[2] = {p.outer_a.at(min(row0, p.m - 1)), p.outer_a.at(min(row0 + 8, p.m - 1))};
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int column = tile.n0 + fragment.column + 8 * j;
    if (column >= p.n) break;
    const Output output{p, column + 1 < p.n};
    const int second = output.pair ? column + 1 : column;
    float2 sb{1.0f, 1.0f}, bias{0.0f, 0.0f};
    if (outer) sb = {p.outer_b.at(column), p.outer_b.at(second)};
    if (p.bias != nullptr) bias = {bias_at(p, column), bias_at(p, second)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 8 * r;
      if (row >= p.m) break;
      float2 v{sum[4 * j + 2 * r], sum[4 * j + 2 * r + 1]};
      if (outer) {
        v = {__fmul_rn(__fmul_rn(v.x, sa[r]), sb.x), __fmul_rn(__fmul_rn(v.y, sa[r]), sb.y)};
      }
      float2 c{0.0f, 0.0f};
      if constexpr (kAddC) {
        c = output.load(row, column);
        c = {__fmul_rn(p.epilogue.beta, c.x), __fmul_rn(p.epilogue.beta, c.y)};
      }
      v = {__fmaf_rn(v.x, s, c.x), __fmaf_rn(v.y, s, c.y)};
      if (p.bias != nullptr) v = {__fadd_rn(v.x, bias.x), __fadd_rn(v.y, bias.y)};
      output.store(v, row, column);
    }
  }
}

__device__ void write_tile(const Problem& p, const Tile& tile, const float (&sum)[64],
                           const Fragment& fragment) {
  if (p.splits > 1) {
    write_parts(p, tile, sum, fragment);
  } else if (p.epilogue.beta != 0.0f) {
    write_elements<true>(p, tile, sum, fragment);
  } else {
    write_elements<false>(p, tile, sum, fragment);
  }
}

/// One chain over the whole range: a stage is released when the next one's products are under way.
template <class Multiply>
__device__ void multiply_fast(const Tile& tile, Shared<false>& shared, Ring& ring,
                              float (&sum)[64]) {
  constexpr int kTileK = kTileBytes / Multiply::kBytes;
  int previous = -1;
  for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring.advance()) {
    const Stage& stage = shared.stages[ring.stage];
    barrier_wait(&shared.full[ring.stage], ring.parity);
    const std::uint64_t a =
        operand_descriptor(stage.a + threadIdx.x / kWarpgroup * 64 * kTileBytes);
    const std::uint64_t b = operand_descriptor(stage.b);
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kStepsPerStage; ++s) {
      Multiply::run(sum, a + 2 * s, b + 2 * s, s > 0 || k > tile.k_begin);
    }
    wgmma_commit();
    keep(sum);
    if (previous >= 0) {
      wgmma_wait<1>();
      if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[previous]);
    }
    previous = ring.stage;
  }
  wgmma_wait<0>();
  keep(sum);
  if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[previous]);
}

/// Chains of one stage each, promoted into `sum`: while one warpgroup adds, the other multiplies.
template <class Multiply, WgmmaStep kStep, bool kScaled>
__device__ void multiply_stages(const Tile& tile, Shared<kScaled>& shared, Ring& ring,
                                const Fragment& fragment, float (&sum)[64]) {
  constexpr int kTileK = kTileBytes / Multiply::kBytes;
  float partial[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
  for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring.advance()) {
    const Stage& stage = shared.stages[ring.stage];
    barrier_wait(&shared.full[ring.stage], ring.parity);
    const std::uint64_t a =
        operand_descriptor(stage.a + threadIdx.x / kWarpgroup * 64 * kTileBytes);
    const std::uint64_t b = operand_descriptor(stage.b);
    keep(partial);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kStepsPerStage; ++s) {  // past the end of K all products are zeros
      Multiply::run(partial, a + 2 * s, b + 2 * s, s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(partial);
    if (!kScaled && threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[ring.stage]);
    const StageScales& scales = shared.scales[kScaled ? ring.stage : 0];
    promote<kStep>(partial, sum, fragment, scales.a[0], scales.b[0]);
    if constexpr (kScaled) barrier_arrive(&shared.empty[ring.stage]);  // after its own scales
  }
}

/// Chains of chunk_steps instructions, each promoted into `sum`.
template <class Multiply, WgmmaStep kStep, bool kScaled>
__device__ void multiply_promoted(const Problem& p, const Tile& tile, Shared<kScaled>& shared,
                                  Ring& ring, const Fragment& fragment, float (&sum)[64]) {
  constexpr int kTileK = kTileBytes / Multiply::kBytes;
  constexpr int kStepK = 32 / Multiply::kBytes;
  float partial[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
  int in_chunk = 0;
  for (int k = tile.k_begin; k < tile.k_end; k += kTileK, ring.advance()) {
    const Stage& stage = shared.stages[ring.stage];
    barrier_wait(&shared.full[ring.stage], ring.parity);
    const std::uint64_t a =
        operand_descriptor(stage.a + threadIdx.x / kWarpgroup * 64 * kTileBytes);
    const std::uint64_t b = operand_descriptor(stage.b);
    const int steps = min(kStepsPerStage, (tile.k_end - k + kStepK - 1) / kStepK);
    int slot = 0;
    for (int s = 0; s < steps;) {
      const int until = min(steps, s + p.chunk_steps - in_chunk);
      keep(partial);
      wgmma_fence();
      for (; s < until; ++s, ++in_chunk) {
        Multiply::run(partial, a + 2 * s, b + 2 * s, in_chunk > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      keep(partial);
      if (s == kStepsPerStage || s == steps) {
        // The scales are still read below, but from their own memory.
        if (!kScaled && threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[ring.stage]);
      }
      const bool last = k + s * kStepK >= tile.k_end;
      if (in_chunk == p.chunk_steps || last) {
        const StageScales& scales = shared.scales[kScaled ? ring.stage : 0];
        promote<kStep>(partial, sum, fragment, scales.a[slot], scales.b[slot]);
        in_chunk = 0;
        ++slot;
      }
    }
    if constexpr (kScaled) barrier_arrive(&shared.empty[ring.stage]);  // after its own scales
  }
}

template <class Multiply, WgmmaStep kStep>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Problem p) {
  constexpr bool kScaled = kStep != WgmmaStep::none && kStep != WgmmaStep::add;
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kScaled>*>(
      (reinterpret_cast<std::uintptr_t>(memory) + 1023) & ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      // Scales are read lane by lane, operands by whole warpgroups.
      barrier_init(&shared.empty[s], kScaled ? 2 * kWarpgroup : 2 * kWarpgroup / 32);
    }
    barrier_init_fence();
    prefetch_map(&map_a);
    prefetch_map(&map_b);
  }
  __syncthreads();

  if (threadIdx.x >= 2 * kWarpgroup) {
    lower_registers<40>();
    if (threadIdx.x == 2 * kWarpgroup) {
      copy_operands<Multiply::kBytes>(p, &map_a, &map_b, shared);
    }
    return;
  }
  raise_registers<232>();
  const Fragment fragment;
  Ring ring;
  for (int index = blockIdx.x; index < p.tiles * p.splits; index += gridDim.x) {
    const Tile tile = tile_of(p, index);
    float sum[64];
    if constexpr (kStep == WgmmaStep::none) {
      multiply_fast<Multiply>(tile, shared, ring, sum);
    } else if (p.chunk_steps == kStepsPerStage) {
      multiply_stages<Multiply, kStep>(tile, shared, ring, fragment, sum);
    } else {
      multiply_promoted<Multiply, kStep>(p, tile, shared, ring, fragment, sum);
    }
    write_tile(p, tile, sum, fragment);
  }
}

/// acc = part[0] + part[1] + ..., then the epilogue of split-K.
__global__ void reduce_kernel(const __grid_constant__ Problem p) {
  const std::int64_t elements = static_cast<std::int64_t>(p.m) * p.n;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       i < elements; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    float sum = p.parts[i];
    for (int s = 1; s < p.splits; ++s) sum = __fadd_rn(sum, p.parts[s * elements + i]);
    const int row = static_cast<int>(i / p.n);
    const int column = static_cast<int>(i % p.n);
    const Output output{p, false};
    const float c = p.epilogue.beta == 0.0f ? 0.0f : output.load(row, column).x;
    const float v = finished(p, sum, p.outer_a.at(row), p.outer_b.at(column), c, column);
    output.store({v, 0.0f}, row, column);
  }
}

/// out[chunk][row] = scale of the row in that chunk of K; zeros in the rows that pad.
__global__ void expand_kernel(Grid grid, int rows, int padded, int chunk, int chunks, float* out) {
  const std::int64_t count = static_cast<std::int64_t>(chunks) * padded;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const int row = static_cast<int>(i % padded);
    const int k = static_cast<int>(i / padded) * chunk;
    float scale = 0.0f;
    if (row < rows) scale = grid.data == nullptr ? 1.0f : grid.row(row)[k / grid.cols];
    out[i] = scale;
  }
}

// --- host ---------------------------------------------------------------------------------------

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                           cudaEnableDefault, &found),
          "cudaGetDriverEntryPoint(cuTensorMapEncodeTiled)");
    if (found != cudaDriverEntryPointSuccess) {
      throw RuntimeFailure("cuTensorMapEncodeTiled: the driver does not have it");
    }
    return reinterpret_cast<EncodeTiled>(symbol);
  }();
  return function;
}

/// Boxes of 128 bytes of K by 128 rows.
CUtensorMap tensor_map(const void* data, int bytes, std::int64_t rows, std::int64_t k,
                       std::int64_t stride) {
  CUtensorMap map{};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kTileBytes / bytes), kTileM};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult status = encode_tiled()(
      &map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
      const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw RuntimeFailure("cuTensorMapEncodeTiled: error " + std::to_string(status));
  }
  return map;
}

Grid grid_of(const ScaleGrid& grid) {
  if (grid.data == nullptr) return {nullptr, 0, 1, 1};
  return {grid.data, static_cast<int>(grid.stride), static_cast<int>(grid.rows),
          static_cast<int>(grid.cols)};
}

bool scaled_steps(const WgmmaGemm& gemm) {
  return gemm.step != WgmmaStep::none && gemm.step != WgmmaStep::add;
}
std::int64_t padded(std::int64_t rows) { return (rows + kTileM - 1) / kTileM * kTileM; }
std::int64_t chunks_of(const WgmmaGemm& gemm) { return (gemm.k + gemm.chunk - 1) / gemm.chunk; }

/// Partial sums, rounded up so that what follows is 16-byte aligned.
std::size_t part_elements(const WgmmaGemm& gemm) {
  return gemm.splits > 1 ? static_cast<std::size_t>((gemm.splits * gemm.m * gemm.n + 3) / 4 * 4)
                         : 0;
}
std::size_t scale_elements(const WgmmaGemm& gemm, std::int64_t rows) {
  return scaled_steps(gemm) ? static_cast<std::size_t>(chunks_of(gemm) * padded(rows)) : 0;
}

/// Scales in the order in which the kernel copies them.
const float* expand(Context& context, const WgmmaGemm& gemm, const ScaleGrid& scales,
                    std::int64_t rows, float* memory) {
  const std::int64_t count = chunks_of(gemm) * padded(rows);
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>((count + 255) / 256, context.multiprocessors() * 8));
  expand_kernel<<<blocks, 256, 0, context.stream()>>>(
      grid_of(scales), static_cast<int>(rows), static_cast<int>(padded(rows)),
      static_cast<int>(gemm.chunk), static_cast<int>(chunks_of(gemm)), memory);
  check_launch("gemm scales");
  return memory;
}

template <class Multiply, WgmmaStep kStep>
void launch(Context& context, const WgmmaGemm& gemm, const Problem& problem) {
  constexpr bool kScaled = kStep != WgmmaStep::none && kStep != WgmmaStep::add;
  constexpr int kMemory = static_cast<int>(sizeof(Shared<kScaled>)) + 1024;
  const auto kernel = gemm_kernel<Multiply, kStep>;
  static const bool prepared = [kernel] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory),
          "cudaFuncSetAttribute");
    return true;
  }();
  (void)prepared;
  const CUtensorMap a = tensor_map(gemm.a, Multiply::kBytes, gemm.m, gemm.k, gemm.a_stride);
  const CUtensorMap b = tensor_map(gemm.b, Multiply::kBytes, gemm.n, gemm.k, gemm.b_stride);
  const int blocks = std::min(problem.tiles * problem.splits, context.multiprocessors());
  kernel<<<blocks, kThreads, kMemory, context.stream()>>>(a, b, problem);
  check_launch("gemm_wgmma");
}

template <class Multiply>
void launch_step(Context& context, const WgmmaGemm& gemm, const Problem& problem) {
  switch (gemm.step) {
    case WgmmaStep::none: return launch<Multiply, WgmmaStep::none>(context, gemm, problem);
    case WgmmaStep::add: return launch<Multiply, WgmmaStep::add>(context, gemm, problem);
    case WgmmaStep::b_then_a: return launch<Multiply, WgmmaStep::b_then_a>(context, gemm, problem);
    case WgmmaStep::a_then_b: return launch<Multiply, WgmmaStep::a_then_b>(context, gemm, problem);
    case WgmmaStep::product_first:
      return launch<Multiply, WgmmaStep::product_first>(context, gemm, problem);
  }
}

}  // namespace

std::size_t wgmma_workspace(const WgmmaGemm& gemm) {
  return (part_elements(gemm) + scale_elements(gemm, gemm.m) + scale_elements(gemm, gemm.n)) *
         sizeof(float);
}

void gemm_wgmma(Context& context, const WgmmaGemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  const int step_k = gemm.types == WgmmaTypes::bf16 ? 16 : 32;
  Problem p{};
  p.outer_a = p.outer_b = grid_of({});
  p.m = static_cast<int>(gemm.m);
  p.n = static_cast<int>(gemm.n);
  p.k = static_cast<int>(gemm.k);
  p.tiles_m = (p.m + kTileM - 1) / kTileM;
  p.tiles_n = (p.n + kTileN - 1) / kTileN;
  p.tiles = p.tiles_m * p.tiles_n;
  p.chunk_steps = static_cast<int>(gemm.chunk / step_k);
  p.splits = static_cast<int>(gemm.splits);
  p.range = static_cast<int>(gemm.splits > 1 ? gemm.range : gemm.k);
  p.parts = gemm.memory;
  if (scaled_steps(gemm)) {
    float* memory = gemm.memory + part_elements(gemm);
    p.chunk = static_cast<int>(gemm.chunk);
    p.padded_m = static_cast<int>(padded(gemm.m));
    p.padded_n = static_cast<int>(padded(gemm.n));
    p.step_a = expand(context, gemm, gemm.scale_a, gemm.m, memory);
    p.step_b = expand(context, gemm, gemm.scale_b, gemm.n, memory + scale_elements(gemm, gemm.m));
  } else {
    p.outer_a = grid_of(gemm.scale_a);
    p.outer_b = grid_of(gemm.scale_b);
  }
  p.epilogue = gemm.epilogue;
  p.bias = gemm.bias;
  p.bias_bf16 = gemm.bias_bf16;
  p.d = gemm.d;
  p.d_stride = gemm.d_stride;
  const std::size_t pair = gemm.epilogue.output.bits() / 8 * 2;
  p.paired = reinterpret_cast<std::uintptr_t>(gemm.d) % pair == 0 && gemm.d_stride % 2 == 0;
  switch (gemm.types) {
    case WgmmaTypes::e4m3_e4m3: launch_step<MultiplyE4M3E4M3>(context, gemm, p); break;
    case WgmmaTypes::e4m3_e5m2: launch_step<MultiplyE4M3E5M2>(context, gemm, p); break;
    case WgmmaTypes::e5m2_e4m3: launch_step<MultiplyE5M2E4M3>(context, gemm, p); break;
    case WgmmaTypes::e5m2_e5m2: launch_step<MultiplyE5M2E5M2>(context, gemm, p); break;
    case WgmmaTypes::bf16: launch_step<MultiplyBf16>(context, gemm, p); break;
  }
  if (p.splits > 1) {
    reduce_kernel<<<context.multiprocessors() * 4, 256, 0, context.stream()>>>(p);
    check_launch("gemm reduction");
  }
}

}  // namespace fp8lab::cuda
