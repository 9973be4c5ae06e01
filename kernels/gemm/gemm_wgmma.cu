#include "kernels/gemm/gemm_wgmma.hpp"

#include <cmath>

#include "kernels/gemm/gemm_epilogue.cuh"
#include "kernels/gemm/gemm_launch.cuh"
#include "kernels/runtime/tensor_map.hpp"

namespace fp8lab::cuda {
namespace {

/// Computes acc = part[0] + part[1] + ..., then the epilogue of split-K.
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

/// Copies the scales inside the sum along K from the operands' layout to the order of Problem. A
/// block moves kOrderedPlaces by kOrderedChunks scales; it reads along K and writes along the tile.
/// A thread computes one row index and issues all its reads of that row at once, because the GEMM
/// cannot begin before. The first `blocks_a` blocks along x move scales of A.
constexpr int kOrderedPlaces = 32, kOrderedChunks = 32, kReadTogether = 8;
template <int kColumns>
__global__ void __launch_bounds__(kOrderedPlaces* kReadTogether)
    order_scales_kernel(const __grid_constant__ Problem p, Grid a, Grid b, int blocks_a) {
  let_next_kernel_start();
  constexpr int kPlaces = scale_places(kScaledTileN, kColumns);
  constexpr int kParts = kOrderedChunks / kReadTogether;
  __shared__ float scales[kOrderedChunks][kOrderedPlaces + 4];
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const bool of_a = block < blocks_a;
  const int place0 = (of_a ? block : block - blocks_a) * kOrderedPlaces;
  const int chunk0 = static_cast<int>(blockIdx.y) * kOrderedChunks;
  const int chunks = (p.k + p.chunk - 1) / p.chunk;
  {
    const int in_block = thread / kReadTogether, place = place0 + in_block;
    const int tile = place / kPlaces;
    const int in_tile = scale_column(place - tile * kPlaces, kScaledTileN, kColumns);
    const int row = of_a ? place : tile * kScaledTileN + in_tile;
    const bool fills_up = of_a ? row >= p.m : in_tile >= kScaledTileN || row >= p.n;
    const Grid grid = of_a ? a : b;
    const float* from = grid.row(fills_up ? 0 : row);
    float read[kParts] = {};
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int chunk = chunk0 + thread % kReadTogether + i * kReadTogether;
      const int column = grid.cols == p.chunk ? chunk : chunk * p.chunk / grid.cols;
      if (!fills_up && chunk < chunks) read[i] = from[column];
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      scales[thread % kReadTogether + i * kReadTogether][in_block] = read[i];
    }
  }
  __syncthreads();
  const int in_block = thread % kOrderedPlaces, place = place0 + in_block;
  const int width = of_a ? p.tiles_m * p.tiling.tile_m : p.tiles_n * kPlaces;
  if (place >= width) return;
  float* to = (of_a ? p.step_a : p.step_b) + place;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int part = thread / kOrderedPlaces + i * kReadTogether;
    if (chunk0 + part >= chunks) return;
    to[static_cast<std::int64_t>(chunk0 + part) * width] = scales[part][in_block];
  }
}

// --- host ---------------------------------------------------------------------------------------

/// Returns the map of a row-major (rows, cols) matrix.
CUtensorMap matrix_map(const void* data, int bytes, std::int64_t rows, std::int64_t cols,
                       std::int64_t stride, int box_rows, int box_cols,
                       CUtensorMapSwizzle swizzle) {
  return tensor_map(data, bytes, {{cols, 1, box_cols}, {rows, stride, box_rows}}, swizzle);
}

Grid grid_of(const ScaleGrid& grid, std::int64_t k) {
  if (grid.data == nullptr) return {nullptr, 0, 1, static_cast<int>(std::max<std::int64_t>(k, 1))};
  return {grid.data, static_cast<int>(grid.stride), static_cast<int>(grid.rows),
          static_cast<int>(grid.cols)};
}

bool scaled_steps(const WgmmaGemm& gemm) {
  return gemm.promoted && numerics::scales_promotion(gemm.order);
}

int ceil_div(int x, int y) { return (x + y - 1) / y; }

/// Returns true if the columns of a tile share their scales in blocks. Tiles
/// begin at multiples of a block.
bool blocks_b(const WgmmaGemm& gemm) {
  if (!gemm.promoted || gemm.order != numerics::ScaleOrder::product_first) return false;
  return gemm.scale_b.data == nullptr || gemm.scale_b.rows % kBlockColumns == 0 ||
         gemm.scale_b.rows >= gemm.n;
}

/// Returns true if there is a kernel with these tiles (launch_types).
bool has_kernel(const WgmmaGemm& gemm, const Tiling& tiling) {
  const bool choice = has_choice(gemm.types);
  if (!gemm.promoted) {
    const bool whole_blocks = !b_by_rows(gemm.orders) || tiling.tile_n % kBlockRows == 0;
    return tiling.chains == Chains::one && whole_blocks && (choice || tiling.tile_n == 128);
  }
  const bool bf16 = gemm.types == WgmmaTypes::bf16;
  const bool stages =
      choice && gemm.chunk * (bf16 ? 2 : 1) == kTileBytes && !(bf16 && scaled_steps(gemm));
  switch (tiling.chains) {
    case Chains::ping_pong:
      return stages && (tiling.tile_m == 192 || multiplies_columns(gemm.order));
    case Chains::overlapped: return stages && !numerics::scales_promotion(gemm.order);
    case Chains::any_length: return !stages;
    case Chains::one: break;
  }
  return false;
}

/// Returns the number of tile rows in a group: at least so many that a round of all multiprocessors
/// reads as much of A as of B, and more as long as their A takes a small part of the L2.
int group_rows(const WgmmaGemm& gemm, const Tiling& tiling, int multiprocessors) {
  constexpr std::int64_t kBytes = std::int64_t{12} << 20;
  const std::int64_t row = tiling.tile_m * gemm.k * (gemm.types == WgmmaTypes::bf16 ? 2 : 1);
  const double even =
      std::sqrt(multiprocessors * static_cast<double>(tiling.tile_n) / tiling.tile_m);
  return static_cast<int>(std::clamp<std::int64_t>(kBytes / std::max<std::int64_t>(row, 1),
                                                   static_cast<std::int64_t>(even), 64));
}

/// A larger tile copies fewer bytes for each product, but more of it may be idle.
struct Choice {
  Tiling tiling;
  double cost;  ///< of one product, relative to others of its promotion step; measured on an H200
};
constexpr Choice kChoices[] = {
    {{Chains::one, 128, 256, 2}, 1.0},         {{Chains::one, 128, 256, 1}, 1.02},
    {{Chains::one, 128, 192, 2}, 1.02},        {{Chains::one, 128, 192, 1}, 1.04},
    {{Chains::one, 128, 160, 2}, 1.06},        {{Chains::one, 128, 160, 1}, 1.08},
    {{Chains::one, 128, 128, 2}, 1.1},         {{Chains::one, 128, 128, 1}, 1.12},
    {{Chains::overlapped, 128, 128, 2}, 1.02}, {{Chains::ping_pong, 192, 128, 1}, 1.0},
    {{Chains::ping_pong, 256, 128, 1}, 0.94},  {{Chains::any_length, 128, 128, 1}, 1.0},
};

/// Returns the cost of sharing, in stages: sums are handed over, and blocks no longer read the same
/// part of K at the same time. Measured on an H200.
double sharing_stages(const Problem& p) { return 6.0 + 0.17 * p.stages; }

/// Returns how many of `tiles` are computed whole; all of `clusters` share the others. Each cluster
/// gets at least a whole tile's stages of them, so that two clusters are enough for each tile.
int whole_tiles(const Problem& p, const Tiling& tiling, int tiles, int clusters) {
  const int rest = tiles % clusters;
  const bool chained = p.splits == 1 && tiling.chains != Chains::any_length;
  if (!chained || tiles < clusters || rest == 0) return tiles;
  const double saved = p.stages * (1.0 - static_cast<double>(rest) / clusters);
  return saved > sharing_stages(p) ? tiles - rest - clusters : tiles;
}

/// Chooses the tiles with the least estimated time. Clusters halve the copies of B, which
/// pays off for long chains.
void choose_tiles(const WgmmaGemm& gemm, int multiprocessors, Problem& p) {
  const bool long_chains = p.k * (gemm.types == WgmmaTypes::bf16 ? 2 : 1) >= 4096;
  double least = 0;
  for (const Choice& choice : kChoices) {
    const Tiling& tiling = choice.tiling;
    if (!has_kernel(gemm, tiling) || (tiling.cluster > 1 && !long_chains)) continue;
    const int tiles_m = ceil_div(p.m, tiling.tile_m), tiles_n = ceil_div(p.n, tiling.tile_n);
    if (tiles_m % tiling.cluster != 0) continue;
    const int tiles = tiles_m / tiling.cluster * tiles_n * p.splits;
    const int clusters = multiprocessors / tiling.cluster;
    const int whole = whole_tiles(p, tiling, tiles, clusters);
    const double stages =
        whole == tiles ? ceil_div(tiles, clusters) * static_cast<double>(p.stages)
                       : p.stages * static_cast<double>(tiles) / clusters + sharing_stages(p);
    const double time = stages * choice.cost * tiling.tile_m * tiling.tile_n;
    if (least != 0 && time >= least) continue;
    least = time;
    p.tiling = tiling;
    p.tiles_m = tiles_m;
    p.tiles_n = tiles_n;
    p.whole = whole;
    p.share = (tiles - whole) * p.stages / clusters;
    p.longer_shares = (tiles - whole) * p.stages % clusters;
    const int high = tiles_m / tiling.cluster;
    const int group = std::max(1, group_rows(gemm, tiling, multiprocessors) / tiling.cluster);
    p.group = Divisor(group);
    p.last_group = Divisor(std::max(1, high % group));
    p.group_tiles = Divisor(group * tiles_n);
  }
}

/// Sizes of the workspace's parts in elements, padded to 16 bytes.
struct Workspace {
  std::int64_t parts, scales_a, scales_b, handed;
};
Workspace workspace_of(const Problem& p, const WgmmaGemm& gemm, int multiprocessors) {
  const auto whole = [](std::int64_t elements) { return (elements + 3) / 4 * 4; };
  const std::int64_t chunks = scaled_steps(gemm) ? ceil_div(p.k, p.chunk) : 0;
  const std::int64_t places = scale_places(p.tiling.tile_n, p.blocks_b ? kBlockColumns : 1);
  const bool shared = p.whole < p.tiles_m / p.tiling.cluster * p.tiles_n * p.splits;
  return {p.splits > 1 ? whole(gemm.splits * gemm.m * gemm.n) : 0,
          chunks * p.tiles_m * p.tiling.tile_m, chunks * p.tiles_n * places,
          shared ? std::int64_t{multiprocessors} * p.tiling.tile_m * p.tiling.tile_n : 0};
}

void order_scales(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  const int chunks = ceil_div(p.k, p.chunk);
  if (chunks == 0) return;
  const auto kernel = p.blocks_b ? order_scales_kernel<kBlockColumns> : order_scales_kernel<1>;
  const int places = scale_places(kScaledTileN, p.blocks_b ? kBlockColumns : 1);
  const int blocks_a = ceil_div(p.tiles_m * p.tiling.tile_m, kOrderedPlaces);
  const dim3 blocks(static_cast<unsigned>(blocks_a + ceil_div(p.tiles_n * places, kOrderedPlaces)),
                    static_cast<unsigned>(ceil_div(chunks, kOrderedChunks)));
  kernel<<<blocks, kOrderedPlaces * kReadTogether, 0, context.stream()>>>(
      p, grid_of(gemm.scale_a, gemm.k), grid_of(gemm.scale_b, gemm.k), blocks_a);
  check_launch("gemm scales");
}

void launch_bf16(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  constexpr WgmmaTypes kTypes = WgmmaTypes::bf16;
  if (scaled_steps(gemm)) return launch_scaled_bf16(context, gemm, p);
  switch (gemm.orders) {
    case WgmmaOrders::k_k: return launch_types<kTypes>(context, gemm, p);
    case WgmmaOrders::k_rows:
      return launch_one_chain<kTypes, WgmmaOrders::k_rows>(context, gemm, p);
    case WgmmaOrders::rows_rows:
      return launch_one_chain<kTypes, WgmmaOrders::rows_rows>(context, gemm, p);
  }
}

/// Returns the problem without pointers to workspace memory.
Problem plan(const WgmmaGemm& gemm, int multiprocessors) {
  const int step_k = gemm.types == WgmmaTypes::bf16 ? 16 : 32;
  Problem p{};
  p.m = static_cast<int>(gemm.m);
  p.n = static_cast<int>(gemm.n);
  p.k = static_cast<int>(gemm.k);
  p.splits = static_cast<int>(gemm.splits);
  p.range = static_cast<int>(gemm.splits > 1 ? gemm.range : gemm.k);
  p.stage_k = kTileBytes / (gemm.types == WgmmaTypes::bf16 ? 2 : 1);
  p.stages = std::max(1, ceil_div(p.range, p.stage_k));
  p.chunk = static_cast<int>(gemm.chunk);
  p.chunk_steps = p.chunk / step_k;
  const bool scaled = scaled_steps(gemm);
  p.outer_a = grid_of(scaled ? ScaleGrid{} : gemm.scale_a, gemm.k);
  p.outer_b = grid_of(scaled ? ScaleGrid{} : gemm.scale_b, gemm.k);
  p.epilogue = gemm.epilogue;
  p.bias = gemm.bias;
  p.bias_bf16 = gemm.bias_bf16;
  p.d = gemm.d;
  p.d_stride = gemm.d_stride;
  const auto address = reinterpret_cast<std::uintptr_t>(gemm.d);
  const bool bf16 = gemm.epilogue.output.bits() == 16;
  p.paired = address % (bf16 ? 4 : 8) == 0 && gemm.d_stride % 2 == 0;
  p.boxed = bf16 && gemm.epilogue.beta == 0.0f && gemm.splits == 1 && address % 16 == 0 &&
            gemm.d_stride % 8 == 0;
  choose_tiles(gemm, multiprocessors, p);
  p.blocks_b = p.tiling.chains == Chains::ping_pong && blocks_b(gemm);
  return p;
}

}  // namespace

CUtensorMap operand_map(const void* data, int bytes, std::int64_t rows, std::int64_t k,
                        std::int64_t stride, int box_rows) {
  return matrix_map(data, bytes, rows, k, stride, box_rows, kTileBytes / bytes,
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap row_block_map(const void* data, std::int64_t rows, std::int64_t k,
                          std::int64_t stride) {
  constexpr int kBytes = 2;
  return matrix_map(data, kBytes, k, rows, stride, kTileBytes / kBytes, kBlockRows,
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap scale_map(const Problem& p, const float* scales, int columns, int box) {
  return matrix_map(scales, sizeof(float), ceil_div(p.k, p.chunk), columns, columns, 1, box,
                    CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap output_map(const Problem& p, int columns) {
  if (!p.boxed) return {};
  const auto swizzle = columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return matrix_map(p.d, 2, p.m, p.n, p.d_stride, 64, columns, swizzle);
}

std::size_t wgmma_workspace(const Context& context, const WgmmaGemm& gemm) {
  const int multiprocessors = context.multiprocessors();
  const Workspace sizes = workspace_of(plan(gemm, multiprocessors), gemm, multiprocessors);
  return static_cast<std::size_t>(sizes.parts + sizes.scales_a + sizes.scales_b + sizes.handed) *
         sizeof(float);
}

void gemm_wgmma(Context& context, const WgmmaGemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  Problem p = plan(gemm, context.multiprocessors());
  const Workspace sizes = workspace_of(p, gemm, context.multiprocessors());
  p.parts = gemm.memory;
  p.step_a = p.parts + sizes.parts;
  p.step_b = p.step_a + sizes.scales_a;
  p.handed = p.step_b + sizes.scales_b;
  p.signals = context.signals();
  if (scaled_steps(gemm)) order_scales(context, gemm, p);
  switch (gemm.types) {
    case WgmmaTypes::e4m3_e4m3: launch_types<WgmmaTypes::e4m3_e4m3>(context, gemm, p); break;
    case WgmmaTypes::e4m3_e5m2: launch_types<WgmmaTypes::e4m3_e5m2>(context, gemm, p); break;
    case WgmmaTypes::e5m2_e4m3: launch_types<WgmmaTypes::e5m2_e4m3>(context, gemm, p); break;
    case WgmmaTypes::e5m2_e5m2: launch_types<WgmmaTypes::e5m2_e5m2>(context, gemm, p); break;
    case WgmmaTypes::bf16: launch_bf16(context, gemm, p); break;
    case WgmmaTypes::s8:
      launch_one_chain<WgmmaTypes::s8, WgmmaOrders::k_k>(context, gemm, p);
      break;
  }
  if (p.splits > 1) {
    reduce_kernel<<<context.multiprocessors() * 4, 256, 0, context.stream()>>>(p);
    check_launch("gemm reduction");
  }
}

}  // namespace fp8lab::cuda
