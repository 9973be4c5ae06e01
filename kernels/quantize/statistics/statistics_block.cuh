// The shared memory of a block of statistics: accumulators for the panel, and prefetch buffers.
#pragma once

#include <cstdint>

#include "kernels/quantize/statistics/statistics_lanes.cuh"

namespace fp8lab::cuda {

/// Number of operands that a block can compare with its panel.
inline constexpr int kMostOperands = 2;

/// Sums of a panel: those of the source, then those of each operand.
inline constexpr int kSourceSums = 3, kErrorSums = 3;
inline constexpr int kPanelSums = kSourceSums + kMostOperands * kErrorSums;

/// Number of rows that a thread processes at a time.
inline constexpr int kRowsAtOnce = 2;
static_assert(kGroup % kRowsAtOnce == 0);

/// Double buffer of data that is fetched eight rows at a time: the current
/// eight rows and the next eight.
inline constexpr int kRingRows = 2 * kGroup;

/// Codes of a thread in the rows that it processes together.
struct alignas(uint4) CodesOfRows {
  std::uint64_t of[kRowsAtOnce];
};

/// Prefetch buffers for data in global memory: rows of the source [row][thread],
/// codes, and a ring of scales.
template <class T>
struct FetchedRows {
  static constexpr int kVectors = sizeof(ElementWords<T>) / sizeof(uint4);
  uint4 source[kRowsAtOnce][kVectors][kPanelThreads];
  CodesOfRows codes[kPanelThreads];
  float scales[kPanelWarps][kRingRows][kMostRowTiles];
};

/// Shared memory of a block. T is the type of the source, Bits the type of codes.
template <class T, class Bits>
struct PanelMemory {
  alignas(uint4) ExponentCounts exponents;
  std::uint32_t channel_amax[StatisticsOrder::kPanelCols];
  struct {
    std::uint32_t nonfinite, underflow, saturated;
    Count hash;
  } operands[kMostOperands];
  double sums[kPanelWarps][kPanelSums];
  float values[256];  ///< decoded value of each code
  /// A bit for each row, set if the warp's part of the tile in that row is not all zeros.
  std::uint32_t nonzero_rows[kPanelWarps][kMostRowTiles];
  /// Eight rows of each thread's codes, transposed: [row][group of columns][thread] in
  /// statistics_careful.cuh; in statistics_panel.cuh a ring in which rows that are
  /// processed together are adjacent.
  union {
    std::uint64_t turned[kGroup][sizeof(Bits)][kPanelThreads];
    struct {
      CodesOfRows turned[kRingRows / kRowsAtOnce][kPanelThreads];
      SharedScales::Memory scales;
      FetchedRows<T> rows;
    } ahead;
  };

  /// Clears all accumulators. Precondition: all threads of the block call it, before a barrier.
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

  /// The give functions add the results of a warp's threads to the block's. Precondition: all
  /// threads of the warp call them. Sums are in the order of kPanelSums.
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

  /// Adds the block's results for the operands `first`, `first` + 1, ... to results[0], results[1],
  /// ... Precondition: all threads of the block call it, after a barrier.
  template <int kCount>
  __device__ void store(int first, bool is_source, const PanelResults* const (&results)[kCount],
                        const PanelPlace& place, std::int64_t cols) const {
    static_assert(kPanelWarps == 4 && kPanelThreads == 2 * kExponentBins);
    const int thread = threadIdx.x;
    // Two threads for each bin; the two halves of the lanes start at different banks.
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
  /// Returns sum number `which` of StatisticsTotals.
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

/// Fills the table of decoded values if codes are decoded by table. Precondition: all threads of
/// the block call it, before a barrier.
template <Stored kStored>
__device__ void fill_values(const numerics::FormatSpec& format, float (&values)[256]) {
  if constexpr (kStored == Stored::codes) {
    for (unsigned code = threadIdx.x; code < 256; code += kPanelThreads) {
      values[code] = numerics::decode(format, code);
    }
  }
}

}  // namespace fp8lab::cuda
