// The inner loop of operand statistics, one table per instruction set, same bits.
#pragma once

#include <cstdint>

#include "emulation/ops/operand_statistics.hpp"

namespace fp8lab::cpu {

/// Lane sums over finite elements, x the source and y its dequantized value.
struct StatisticsSums {
  alignas(64) double xx[kStatisticsLanes];    ///< x^2
  alignas(64) double xxxx[kStatisticsLanes];  ///< (x^2)^2
  alignas(64) double xy[kStatisticsLanes];
  alignas(64) double yy[kStatisticsLanes];
  alignas(64) double ee[kStatisticsLanes];  ///< (y - x)^2
  alignas(64) double e[kStatisticsLanes];   ///< y - x
  alignas(64) double x[kStatisticsLanes];   ///< |x|
};

/// A row of elements; the arrays are padded with zeros to a multiple of 8. `limits` holds the
/// largest magnitudes that do not count as saturated.
struct StatisticsRow {
  const float* x;
  const float* y;
  const float* limits;
  std::int64_t n;
};

struct StatisticsKernels {
  /// Element i goes to lane i mod 8, i ascending; what is not finite adds zero. channel_amax[i] is
  /// raised to the FP32 bits of |x[i]| where x and y are finite, for i < n.
  void (*add_row)(const StatisticsRow* row, StatisticsSums* sums, StatisticsCounts* counts,
                  std::uint32_t* channel_amax);
};

/// The table of active_target().
const StatisticsKernels& statistics_kernels();

}  // namespace fp8lab::cpu
