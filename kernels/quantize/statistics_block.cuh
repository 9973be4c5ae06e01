// The shared memory in which the threads of a block gather what they find in a panel, and in which
// they read ahead.
#pragma once

#include <cstdint>

#include "kernels/quantize/statistics_lanes.cuh"

namespace fp8lab::cuda {

/// Operands that a block may compare with its panel.
inline constexpr int kMostOperands = 2;

/// Sums of a panel: those of the source, then those of each operand.
inline constexpr int kSourceSums = 3, kErrorSums = 3;
inline constexpr int kPanelSums = kSourceSums + kMostOperands * kErrorSums;

/// Rows that a thread takes at a time.
inline constexpr int kRowsAtOnce = 2;
static_assert(kGroup % kRowsAtOnce == 0);

/// Rows of which there is what comes eight at a time: those at work and the next ones.
inline constexpr int kRingRows = 2 * kGroup;

/// Tiles of one row that the columns of a warp may lie in, where its scales are read ahead.
inline constexpr int kMostRowTiles = 16;

/// Codes of a thread in rows that it takes at once.
struct alignas(uint4) CodesOfRows {
  std::uint64_t of[kRowsAtOnce];
};

/// What is read from global memory ahead: rows of the source [row][thread], codes, and a ring of
/// scales.
template <class T>
struct FetchedRows {
  static constexpr int kVectors = sizeof(ElementWords<T>) / sizeof(uint4);
  uint4 source[kRowsAtOnce][kVectors][kPanelThreads];
  CodesOfRows codes[kPanelThreads];
  float scales[kPanelWarps][kRingRows][kMostRowTiles];
};

/// Shared memory of a block; the source has the type T, codes Bits.
template <class T, class Bits>
struct PanelMemory {
  alignas(uint4) ExponentCounts exponents;
  std::uint32_t channel_amax[StatisticsOrder::kPanelCols];
  struct {
    std::uint32_t nonfinite, underflow, saturated;
    Count hash;
  } operands[kMostOperands];
  double sums[kPanelWarps][kPanelSums];
  float values[256];  ///< of the codes
  /// Bits of rows, of which what a warp has of a tile is not all zeros.
  std::uint32_t nonzero_rows[kPanelWarps][kMostRowTiles];
  /// Eight rows of each thread's codes, turned: [row][group of columns][thread] for
  /// statistics_careful.cuh, a ring with rows taken at once side by side for statistics_panel.cuh.
  union {
    std::uint64_t turned[kGroup][sizeof(Bits)][kPanelThreads];
    struct {
      CodesOfRows turned[kRingRows / kRowsAtOnce][kPanelThreads];
      SharedScales::Memory scales;
      FetchedRows<T> rows;
    } ahead;
  };

  /// By all threads of the block, before a barrier.
  __device__ void clear() {
    auto* bins = reinterpret_cast<uint4*>(&exponents);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof exponents / sizeof(uint4)) / kPanelThreads; ++i) {
      bins[i * kPanelThreads + threadIdx.x] = {};
    }
    for (int i = threadIdx.x; i < StatisticsOrder::kPanelCols; i += kPanelThreads) {
      channel_amax[i] = 0;
    }
    if (threadIdx.x < kPanelWarps * kMostRowTiles) (&nonzero_rows[0][0])[threadIdx.x] = 0;
    if (threadIdx.x < kMostOperands) operands[threadIdx.x] = {};
  }

  /// Adds what the threads of a warp, which must all call these, have found: sums in the order of
  /// kPanelSums.
  template <int kCount>
  __device__ void give_sums(double (&mine)[kCount]) {
    const double sum = sum_lanes(mine);
    if (lane_id() < kCount) sums[warp_id()][lane_id()] = sum;
  }
  __device__ static void give_count(std::uint32_t mine, std::uint32_t& total) {
    const std::uint32_t all = __reduce_add_sync(kAllLanes, mine);
    if (lane_id() == 0 && all != 0) atomicAdd(&total, all);
  }
  __device__ void give_hash(std::uint64_t mine, int operand) {
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      mine += __shfl_xor_sync(kAllLanes, mine, span);
    }
    if (lane_id() == 0) atomicAdd(&operands[operand].hash, static_cast<Count>(mine));
  }
  __device__ void give(const Magnitudes<T>& channels) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (channels[i] != 0) atomicMax(&channel_amax[lane_id() * kGroup + i], channels[i]);
    }
  }

  /// Hands over what was found of `count` operands from `first` on, whose results are results[0]
  /// and following. By all threads of the block, after a barrier.
  template <int kCount>
  __device__ void store(int first, bool is_source, const PanelResults* const (&results)[kCount],
                        const PanelPlace& place, std::int64_t cols) const {
    static_assert(kPanelWarps == 4 && kPanelThreads == 2 * kExponentBins);
    const int thread = threadIdx.x;
    // Two threads a bin, whose halves of a warp's lanes begin at different banks.
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kWarpSize / 2; ++i) {
      count +=
          exponents[thread / 2][thread % 2 * (kWarpSize / 2) + (i + thread / 2) % (kWarpSize / 2)];
    }
    count += __shfl_xor_sync(kAllLanes, count, 1);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Tally& tally = *results[i]->tally;
      if (thread % 2 == 0 && count != 0) atomicAdd(&tally.exponents[thread / 2], Count{count});
      if (thread < kStatisticsSums) {
        reinterpret_cast<double*>(results[i]->totals + place.panel)[thread] =
            total(thread, first + i, is_source);
      }
      if (thread != kPanelThreads - 1) continue;
      const auto& found = operands[first + i];
      if (found.nonfinite != 0) atomicAdd(&tally.nonfinite, Count{found.nonfinite});
      if (found.underflow != 0) atomicAdd(&tally.underflow, Count{found.underflow});
      if (found.saturated != 0) atomicAdd(&tally.saturated, Count{found.saturated});
      atomicAdd(&tally.hash, found.hash);
    }
    for (int col = thread; col < StatisticsOrder::kPanelCols && place.first_col + col < cols;
         col += kPanelThreads) {
      const std::uint32_t amax = channel_amax[col];
      if (amax == 0) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        atomicMax(&results[i]->channel_amax[place.first_col + col], amax);
      }
    }
  }

 private:
  /// Sum `which` of StatisticsTotals.
  __device__ double total(int which, int operand, bool is_source) const {
    const int errors = kSourceSums + operand * kErrorSums;
    // xx, xxxx, yy, ee, e, x.
    int from = which < 2 ? which : which == 5 ? 2 : errors + which - 2;
    if (is_source && which >= 2 && which <= 4) {
      if (which >= 3) return 0.0;
      from = 0;
    }
    return (sums[0][from] + sums[1][from]) + (sums[2][from] + sums[3][from]);
  }
};

/// By all threads of the block, before a barrier: the values of codes that a table decodes.
template <Stored kStored>
__device__ void fill_values(const numerics::FormatSpec& format, float (&values)[256]) {
  if constexpr (kStored == Stored::codes) {
    for (unsigned code = threadIdx.x; code < 256; code += kPanelThreads) {
      values[code] = numerics::decode(format, code);
    }
  }
}

}  // namespace fp8lab::cuda
