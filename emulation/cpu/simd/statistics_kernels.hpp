// The inner loop of operand statistics: one table per instruction set, all with the same bits.
#pragma once

#include <cstdint>

#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab::cpu {

/// The rows of one lane by 64 columns, row-major; zeros beyond `cols`.
struct StatisticsBlock {
  static constexpr int kRows = StatisticsOrder::kLaneRows, kCols = 64;
  static constexpr int kLanes = kCols / StatisticsOrder::kLaneCols;

  alignas(64) float x[kRows * kCols];       ///< source
  alignas(64) float y[kRows * kCols];       ///< its dequantized value
  alignas(64) float limits[kRows * kCols];  ///< largest magnitudes that are not saturated
  std::int64_t rows, cols;
};

/// Sums of the lanes of a block over finite elements, in the order of lanes.
struct StatisticsSums {
  static constexpr int kLanes = StatisticsBlock::kLanes;
  alignas(64) double xx[kLanes];    ///< x^2
  alignas(64) double xxxx[kLanes];  ///< (x^2)^2
  alignas(64) double yy[kLanes];
  alignas(64) double ee[kLanes];  ///< (y - x)^2
  alignas(64) double e[kLanes];   ///< y - x
  alignas(64) double x[kLanes];   ///< |x|
};

struct StatisticsKernels {
  /// Writes the sums of a block and adds its counts. For c < cols, raises channel_amax[c] to the
  /// FP32 bits of each |x| of column c at which x and y are finite.
  void (*compare)(const StatisticsBlock* block, StatisticsSums* sums, StatisticsCounts* counts,
                  std::uint32_t* channel_amax);
};

/// Returns the table of active_target().
const StatisticsKernels& statistics_kernels();

}  // namespace fp8lab::cpu
