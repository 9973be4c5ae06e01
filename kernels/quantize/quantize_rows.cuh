// The kernel that quantizes by rows: a block loads or computes a row and holds it in registers
// until its codes are written.
//
//   row r        | group 0 of threads 0, 1, 2, ... | group 1 of threads 0, 1, 2, ... |  up to 4
//   (a block)      8 elements each, neighbouring threads side by side; at most 1024 threads
//        |
//        |  Source::load    all global reads of a thread
//        |  Source::begin   reductions over the whole row, such as a norm's sum (quantize_fused.cu)
//        |  Source::make    the elements
//        v
//   HeldRow: 4 groups of 8 elements a thread, in registers
//        +--> amax of the tensor (delayed): raise(), at most one atomic a block
//        +--> factors
//        |      row     maxima of the warps to of_warp;  barrier;  warp 0 writes the scale, and the
//        |              factor to shared memory;  barrier
//        |      tiles   2 to 16 neighbouring lanes hold a tile of 16 to 128: shuffles, no barrier
//        |      given   known before the launch
//        v
//   codes: 8 bytes a group
#pragma once

#include "kernels/pointwise/held_rows.cuh"
#include "kernels/quantize/quantize_group.cuh"
#include "kernels/quantize/quantize_rows.hpp"

namespace fp8lab::cuda {

/// A source of row_kernel whose elements lie in memory. Every source provides: `load`,
/// which reads the inputs of a group of elements; `begin`, which all threads of a block
/// call for their row after all loads; `make`, which returns the elements of a group, with
/// zeros after the first `left`.
template <class T>
struct StoredRows {
  using Element = T;
  using Loaded = Group<T>;
  static constexpr int kBlocks = sizeof(T) == 2 ? 5 : 4;  ///< small blocks on an SM
  Rows<T> rows;

  __device__ Loaded load(std::int64_t row, int col, int left) const {
    return load_group(rows, row, col, left);
  }
  __device__ float begin(std::int64_t, int, const Loaded (&)[kHeldGroups]) const { return 0.0f; }
  __device__ Group<T> make(std::int64_t, int, int, float, const Loaded& loaded) const {
    return loaded;
  }
};

/// The thread's part of a row.
template <class T>
struct HeldRow {
  Group<T> groups[kHeldGroups];
  int cols;

  /// Number of columns of the row from group h on; not positive beyond its end.
  __device__ int left(int h) const { return cols - held_col(h); }
  template <class Source>
  __device__ void load(const Source& source, std::int64_t row) {
    typename Source::Loaded loaded[kHeldGroups];
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) loaded[h] = source.load(row, held_col(h), left(h));
    const float begun = source.begin(row, cols, loaded);
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) {
      groups[h] = source.make(row, held_col(h), left(h), begun, loaded[h]);
    }
  }
  __device__ void amaxes(std::uint32_t (&largest)[kHeldGroups]) const {
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) largest[h] = Magnitudes<T>(groups[h]).amax();
  }
  __device__ std::uint32_t amax() const {
    Magnitudes<T> largest(groups[0]);
#pragma unroll
    for (int h = 1; h < kHeldGroups; ++h) largest.raise(Magnitudes<T>(groups[h]));
    return largest.amax();
  }
};

/// Returns the factor of the row's own scale; the first warp computes the scale and writes it.
template <class T>
__device__ float row_factor(const BlockOperand& operand, const HeldRow<T>& held, std::int64_t row) {
  __shared__ std::uint32_t of_warp[kWarpSize];
  __shared__ float factor;
  std::uint32_t largest = warp_max(held.amax());
  if (lane_id() == 0) of_warp[warp_id()] = largest;
  __syncthreads();
  if (warp_id() == 0) {
    largest = warp_max(lane_id() < warp_count() ? of_warp[lane_id()] : 0);
    const numerics::TileScale scale = scale_of_tile(operand, largest);
    if (lane_id() == 0) {
      factor = factor_of(operand, scale);
      operand.scales[row * operand.scale_stride] = scale.decode;
    }
  }
  __syncthreads();
  return factor;
}

/// Computes the factors of tiles of one row that reach over kLanes groups, and writes their scales.
template <int kLanes, class T>
__device__ void tile_factors(const BlockOperand& operand, const HeldRow<T>& held, std::int64_t row,
                             float (&factors)[kHeldGroups]) {
  using Lanes = Spread<kHeldGroups, kLanes, 1>;
  const int lane = lane_id();
  std::uint32_t largest[kHeldGroups];
  held.amaxes(largest);
  Lanes::reduce(lane, largest);
  float kept[Lanes::kKept];
#pragma unroll
  for (int i = 0; i < Lanes::kKept; ++i) {
    const numerics::TileScale scale = scale_of_tile(operand, largest[i]);
    kept[i] = factor_of(operand, scale);
    const int start = held_col(Lanes::first(lane) + i) - Lanes::place(lane) * kGroup;
    if (start < held.cols) {
      operand.scales[row * operand.scale_stride + start / (kLanes * kGroup)] = scale.decode;
    }
  }
#pragma unroll
  for (int h = 0; h < kHeldGroups; ++h) factors[h] = Lanes::gather(lane, kept, h);
}

/// The extent of a scale: the row, tiles of the row (operand.col_shift), or given, the whole tensor
/// with a factor that is known before the launch.
enum class RowScales { row, tiles, given };

template <RowScales kScales, class T>
__device__ void held_factors(const BlockOperand& operand, const HeldRow<T>& held, std::int64_t row,
                             float (&factors)[kHeldGroups]) {
  if constexpr (kScales == RowScales::tiles) {
    switch (operand.col_shift) {
      case 4: return tile_factors<2>(operand, held, row, factors);
      case 5: return tile_factors<4>(operand, held, row, factors);
      case 6: return tile_factors<8>(operand, held, row, factors);
      default: return tile_factors<16>(operand, held, row, factors);
    }
  }
  const float factor =
      kScales == RowScales::given ? *operand.factors : row_factor(operand, held, row);
#pragma unroll
  for (int h = 0; h < kHeldGroups; ++h) factors[h] = factor;
}

/// Quantizes rows, one block for each. Raises *amax to the largest magnitude unless it is nullptr.
template <RowScales kScales, class Cast, int kThreads, class Source>
__global__ void __launch_bounds__(kThreads, kThreads == kMostRowThreads ? 1 : Source::kBlocks)
    row_kernel(const __grid_constant__ Source source, int cols,
               const __grid_constant__ BlockOperand operand, std::uint32_t* amax) {
  const std::int64_t row = blockIdx.x;
  HeldRow<typename Source::Element> held;
  held.cols = cols;
  held.load(source, row);
  if (amax != nullptr) raise(amax, held.amax());
  float factors[kHeldGroups];
  held_factors<kScales>(operand, held, row, factors);
  const Cast cast(operand);
  const bool wide = is_aligned(operand, sizeof(uint2));
  std::uint8_t* const line = operand.codes + row * operand.stride;
#pragma unroll
  for (int h = 0; h < kHeldGroups; ++h) {
    const int left = held.left(h);
    if (left <= 0) continue;
    write_group(cast, held.groups[h], factors[h], wide && left >= kGroup, left,
                row * cols + held_col(h), line + held_col(h));
  }
}

/// Runs row_kernel with `shared` bytes of dynamic shared memory for the source.
template <RowScales kScales, class Cast, class Source>
void launch_rows(Context& context, const Source& source, std::int64_t rows, std::int64_t cols,
                 const BlockOperand& operand, std::uint32_t* amax, std::size_t shared) {
  const unsigned threads = held_row_threads(cols);
  const auto launch = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(rows), threads, shared, context.stream()>>>(
        source, static_cast<int>(cols), operand, amax);
  };
  if (threads <= kFewRowThreads) {
    launch(row_kernel<kScales, Cast, kFewRowThreads, Source>);
  } else {
    launch(row_kernel<kScales, Cast, kMostRowThreads, Source>);
  }
  check_launch("quantize: rows");
}

}  // namespace fp8lab::cuda
