// Amaxes and scales of any tiles, and the update of delayed scales.
//
//   amax_kernel: a block for 64 x 64 elements, which touch at most 64 x 64 tiles
//     largest[tile] = 0;  barrier
//     a thread's 8 columns of a row: a running maximum, to largest[tile] where the tile changes
//     (atomicMax)
//     barrier;  largest[tile] to amax[tile] in global memory (atomicMax);  barrier
//   scale_kernel: a thread a tile: numerics::tile_scale or nv_tile_scale; mae and mse read the
//     tile's elements twice, rows ascending, a standard deviation once
//   delayed_scale_kernel: one block shifts the history by one entry, from the far end on, 256
//     entries at a time; a barrier separates the reads of a step from its writes
#include "kernels/quantize/quantize_scales.hpp"

#include <algorithm>

#include "emulation/numerics/scaling.hpp"
#include "emulation/numerics/tile_deviation.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/quantize_tiles.cuh"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::TileScale;

/// Returns the bits of |x|; those of a NaN are above those of infinity.
template <class T>
__device__ std::uint32_t magnitude(T value) {
  return float_bits(widen(value)) & 0x7FFFFFFFu;
}

/// amax[tile] = max(amax[tile], |x|...) as bits; the order of the maximum does not matter.
template <class T>
__global__ void __launch_bounds__(kTileThreadCount)
    amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                std::uint32_t* amax) {
  __shared__ std::uint32_t largest[kTileSide * kTileSide];
  const int thread = static_cast<int>(threadIdx.y) * kThreadsAcross + static_cast<int>(threadIdx.x);
  const std::int64_t col0 = std::int64_t{blockIdx.x} * kTileSide;
  const std::int64_t col = col0 + threadIdx.x * kGroup;
  const int count = static_cast<int>(min(cols - col, std::int64_t{kGroup}));
  const std::int64_t tile_col0 = col0 / grid.width;
  const int across =
      static_cast<int>((min(col0 + kTileSide, cols) - 1) / grid.width - tile_col0) + 1;
  const TileOfColumn first(col, grid.width);
  for (std::int64_t row0 = std::int64_t{blockIdx.y} * kTileSide; row0 < rows;
       row0 += std::int64_t{gridDim.y} * kTileSide) {
    const std::int64_t tile_row0 = row0 / grid.height;
    const int down =
        static_cast<int>((min(row0 + kTileSide, rows) - 1) / grid.height - tile_row0) + 1;
    for (int i = thread; i < across * down; i += kTileThreadCount) largest[i] = 0;
    __syncthreads();
    for (int i = threadIdx.y; i < kTileSide && row0 + i < rows && count > 0; i += kThreadsDown) {
      T bits[kGroup];
      source.load_bits(row0 + i, col, count, bits);
      std::uint32_t* const of_row =
          largest + static_cast<int>((row0 + i) / grid.height - tile_row0) * across;
      TileOfColumn at = first;
      std::uint32_t running = 0;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if (j == count) break;
        running = max(running, magnitude(bits[j]));
        const std::int64_t tile = at.tile - tile_col0;
        at.next(grid.width);
        if (j + 1 < count && at.tile - tile_col0 == tile) continue;
        atomicMax(&of_row[tile], running);
        running = 0;
      }
    }
    __syncthreads();
    for (int i = thread; i < across * down; i += kTileThreadCount) {
      if (largest[i] == 0) continue;
      atomicMax(&amax[(tile_row0 + i / across) * grid.wide + tile_col0 + i % across], largest[i]);
    }
    __syncthreads();
  }
}

/// Returns the error of a source tile under `scale` (sum of numerics::four_over_six_error), by
/// which two scales are compared.
template <class T>
__device__ float tile_error(const Rows<T>& source, std::int64_t rows, std::int64_t cols,
                            const TileGrid& grid, std::int64_t i, std::int64_t j,
                            const QuantSpec& spec, const TileScale& scale) {
  float sum = 0.0f;
  for (std::int64_t r = i * grid.height; r < min((i + 1) * grid.height, rows); ++r) {
    float row_sum = 0.0f;
    for (std::int64_t c = j * grid.width; c < min((j + 1) * grid.width, cols); ++c) {
      row_sum += numerics::four_over_six_error(spec.scale.four_over_six, spec.format, scale,
                                               source.load(r, c));
    }
    sum += row_sum;
  }
  return sum;
}

/// Returns the replacement for the amax of a source tile: `deviations` standard deviations.
template <class T>
__device__ float tile_deviations(const Rows<T>& source, std::int64_t rows, std::int64_t cols,
                                 const TileGrid& grid, std::int64_t i, std::int64_t j,
                                 float deviations, float largest) {
  numerics::TileDeviation deviation(float_bits(largest));
  for (std::int64_t r = i * grid.height; r < min((i + 1) * grid.height, rows); ++r) {
    for (std::int64_t c = j * grid.width; c < min((j + 1) * grid.width, cols); ++c) {
      deviation.add(source.load(r, c));
    }
  }
  return bits_float(deviation.times(deviations));
}

/// Computes factors[tile] and the operand's scales from the amaxes; one thread for each tile.
template <class T>
__global__ void scale_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                             const __grid_constant__ QuantSpec spec,
                             const std::uint32_t* outer_amax, const std::uint32_t* amax,
                             float* factors, Scales scales) {
  const std::int64_t tile = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tile >= grid.high * grid.wide) return;
  const std::int64_t i = tile / grid.wide, j = tile % grid.wide;
  const float largest = bits_float(amax[tile]);
  TileScale scale;
  if (spec.scale.format == numerics::ScaleFormat::nv_two_level) {
    const std::int64_t row = spec.scale.outer == numerics::OuterScale::tensor ? 0
                             : scales.transpose                               ? j
                                                                              : i;
    const float factor =
        numerics::nv_tensor_factor(spec.scale, spec.format, bits_float(outer_amax[row]));
    scale = numerics::nv_tile_scale(spec.format, factor, largest);
    if (spec.scale.four_over_six != numerics::FourOverSix::none) {
      const TileScale enlarged = numerics::nv_tile_scale(spec.format, factor, largest, true);
      if (tile_error(source, rows, cols, grid, i, j, spec, enlarged) <
          tile_error(source, rows, cols, grid, i, j, spec, scale)) {
        scale = enlarged;
      }
    }
  } else {
    const float deviations = spec.scale.deviations;
    scale = numerics::tile_scale(
        spec.scale, spec.format,
        deviations == 0.0f ? largest
                           : tile_deviations(source, rows, cols, grid, i, j, deviations, largest));
  }
  factors[tile] = spec.scale.divides() ? scale.decode : scale.multiplier;
  scales.store(i, j, scale.decode);
}

/// Writes the single known scale of a tensor: from `state` (DelayedState), or `decode` and
/// `multiplier` if the state is absent or zero.
__global__ void known_scale_kernel(const float* state, float decode, float multiplier, bool divide,
                                   float* factor, Scales scales) {
  if (state != nullptr && state[DelayedState::kScale] != 0.0f) {
    decode = state[DelayedState::kScale];
    multiplier = state[DelayedState::kMultiplier];
  }
  *factor = divide ? decode : multiplier;
  scales.store(0, 0, decode);
}

/// Runs ops::UpdateDelayedScale in one block.
__global__ void delayed_scale_kernel(const __grid_constant__ QuantSpec spec, float* values) {
  constexpr int kBlock = 256;
  __shared__ std::uint32_t largest;
  const bool window = spec.amax_algorithm == AmaxAlgorithm::window;
  const float newest = values[DelayedState::kAmax];
  if (newest == 0.0f && !window) return;
  float* const history = values + DelayedState::kHistory;
  const int length = spec.history_length;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::uint32_t seen = 0;
  for (int last = length; last > 0; last -= kBlock) {  // shifted by one entry from the far end on
    const int i = last - 1 - static_cast<int>(threadIdx.x);
    const float moved = i > 0 ? history[i - 1] : newest;
    __syncthreads();
    if (i >= 0) {
      history[i] = moved;
      seen = max(seen, float_bits(moved));
    }
    __syncthreads();
  }
  atomicMax(&largest, seen);
  __syncthreads();
  if (threadIdx.x != 0) return;
  values[DelayedState::kAmax] = 0.0f;
  if (window) {
    history[length] += 1.0f;
    if (history[length] < static_cast<float>(length)) return;
    history[length] = 0.0f;
  }
  const std::uint32_t amax =
      spec.amax_algorithm == AmaxAlgorithm::most_recent ? float_bits(newest) : largest;
  if ((amax == 0 && !window) || amax >= numerics::kF32Infinity) return;
  const TileScale scale = numerics::tile_scale(spec.scale, spec.format, bits_float(amax));
  values[DelayedState::kScale] = scale.decode;
  values[DelayedState::kMultiplier] = scale.multiplier;
}

}  // namespace

Scales scales_of(const QuantizedOperand& operand, bool transpose) {
  return {static_cast<float*>(operand.scales.data), operand.scales.row_stride, transpose};
}

void measure_tiles(Context& context, const TensorView& source, const TileGrid& grid,
                   std::uint32_t* amax) {
  with_rows(
      [&](const auto& rows) {
        amax_kernel<<<tile_blocks(source), kTileThreads, 0, context.stream()>>>(
            rows, source.rows, source.cols, grid, amax);
      },
      source);
  check_launch("quantize: amax");
}

void find_tile_scales(Context& context, const TensorView& source, const TileGrid& grid,
                      const QuantSpec& spec, const std::uint32_t* outer_amax,
                      const std::uint32_t* tile_amax, float* factors, const Scales& scales) {
  constexpr unsigned kThreads = 128;
  const auto blocks = static_cast<unsigned>((grid.count() + kThreads - 1) / kThreads);
  with_rows(
      [&](const auto& rows) {
        scale_kernel<<<blocks, kThreads, 0, context.stream()>>>(
            rows, source.rows, source.cols, grid, spec, outer_amax, tile_amax, factors, scales);
      },
      source);
  check_launch("quantize: scales");
}

void find_known_scale(Context& context, const QuantSpec& spec, const TensorView& state,
                      float* factor, const Scales& scales) {
  const float given = spec.scale_source == ScaleSource::static_scale ? spec.static_scale : 1.0f;
  const auto* values =
      spec.scale_source == ScaleSource::delayed ? static_cast<const float*>(state.data) : nullptr;
  known_scale_kernel<<<1, 1, 0, context.stream()>>>(
      values, given, numerics::bounded_quotient(1.0f, given),
      spec.has_scale() && spec.scale.divides(), factor, scales);
  check_launch("quantize: scale");
}

void run(Context& context, const ops::UpdateDelayedScale& op) {
  check_delayed_state(op.spec, op.state);
  delayed_scale_kernel<<<1, 256, 0, context.stream()>>>(op.spec,
                                                        static_cast<float*>(op.state.data));
  check_launch("update_delayed_scale");
}

}  // namespace fp8lab::cuda
