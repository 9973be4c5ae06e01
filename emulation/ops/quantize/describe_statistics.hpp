// Computes the logged record from the values read from the tensors: one definition in FP64, for the
// CPU backend and for the device. Division and square root are rounded to nearest, nothing is
// contracted, and logarithms are numerics::log2_f64. No arithmetic is done on a NaN, because
// payloads differ between processors, and a record has the same bytes on every backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "emulation/numerics/exact_math.hpp"
#include "emulation/ops/quantize/channel_ranks.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab {

/// FP64 sums over a band of rows or over the tensor: x is the source, y its dequantized value, e
/// the error y - x. The sum of x y is not stored; it follows from the sums of squares.
struct StatisticsTotals {
  double xx, xxxx, yy, ee, e, x;

  StatisticsTotals& operator+=(const StatisticsTotals& other) {
    xx += other.xx;
    xxxx += other.xxxx;
    yy += other.yy;
    ee += other.ee;
    e += other.e;
    x += other.x;
    return *this;
  }
};

/// All values that are read from the tensors; the rest of the record follows from them.
struct StatisticsParts {
  std::int64_t elements;
  StatisticsTotals sums;  ///< bands in ascending order
  StatisticsCounts counts;
  ChannelRanks channels;  ///< amaxes of the finite elements of each column
  std::int64_t tiles, zero_tiles;
  float smallest_scale, largest_scale;  ///< over tiles that count, finite; largest 0: no such tile
  std::uint64_t hash;
};

namespace statistics_detail {

inline constexpr double kDecibelsPerOctave = 3.0102999566398120;  // 10 log10 2
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// Returns NaN if the denominator is zero or itself undefined.
FP8LAB_HD inline double ratio(double numerator, double denominator) {
  return denominator > 0.0 || denominator < 0.0 ? numerator / denominator : kUndefined;
}

FP8LAB_HD inline double sqnr_decibels(double signal, double error) {
  if (signal == 0.0) return error == 0.0 ? kUndefined : -kInfinity;
  if (error == 0.0) return kInfinity;
  const double octaves = numerics::log2_f64(signal) - numerics::log2_f64(error);
  return kDecibelsPerOctave * octaves;
}

FP8LAB_HD inline void describe_errors(const StatisticsTotals& sums, double finite,
                                      OperandStatistics& result) {
  const double mean_square = ratio(sums.xx, finite);
  result.rms = finite > 0.0 ? std::sqrt(mean_square) : kUndefined;
  result.mse = ratio(sums.ee, finite);
  result.bias = ratio(sums.e, sums.x);
  result.kurtosis = ratio(ratio(sums.xxxx, finite), mean_square * mean_square);
  result.crest_factor = ratio(result.amax, result.rms);
  result.sqnr_db = sqnr_decibels(sums.xx, sums.ee);
  const double norms = std::sqrt(sums.xx) * std::sqrt(sums.yy);
  const double product = ((sums.xx + sums.yy) - sums.ee) * 0.5;
  result.cosine = ratio(product, norms);
}

FP8LAB_HD inline void describe_channels(const ChannelRanks& channels, OperandStatistics& result) {
  for (int i = 0; i < OperandStatistics::kTopChannels; ++i) {
    const Channel& channel = channels.top.entries[i];
    const bool taken = channel.index != TopChannels::kNone;
    result.top_channel[i] = taken ? static_cast<double>(channel.index) : -1.0;
    result.top_channel_amax[i] = taken ? double{numerics::bits_float(channel.amax)} : 0.0;
  }
  result.amax = result.top_channel_amax[0];
  const double upper = numerics::bits_float(channels.upper_median);
  const double lower = numerics::bits_float(channels.lower_median);
  const double median = (lower + upper) / 2.0;
  const bool unbounded = median == 0.0 && result.amax > 0.0;
  result.channel_outlier_ratio = unbounded ? kInfinity : ratio(result.amax, median);
}

FP8LAB_HD inline void describe_scales(const StatisticsParts& parts, OperandStatistics& result) {
  result.zero_tile_fraction =
      static_cast<double>(parts.zero_tiles) / static_cast<double>(parts.tiles);
  result.scale_min = result.scale_max = result.scale_log2_spread = kUndefined;
  if (parts.largest_scale == 0.0f) return;
  result.scale_min = parts.smallest_scale;
  result.scale_max = parts.largest_scale;
  result.scale_log2_spread =
      numerics::log2_f64(result.scale_max) - numerics::log2_f64(result.scale_min);
}

}  // namespace statistics_detail

/// Returns the number of finite nonzero elements.
FP8LAB_HD inline std::int64_t exponents_counted(const StatisticsCounts& counts) {
  std::int64_t all = 0;
  for (const std::int64_t count : counts.exponents) all += count;
  return all;
}

/// Returns bin `bin` of the histogram of `all` exponents; 0 if there are none.
FP8LAB_HD inline double exponent_fraction(const StatisticsCounts& counts, std::int64_t all,
                                          int bin) {
  if (all == 0) return 0.0;
  return static_cast<double>(counts.exponents[bin]) / static_cast<double>(all);
}

/// Computes everything but the histogram; its bins depend on nothing else in the record.
FP8LAB_HD inline void describe_scalars(const StatisticsParts& parts, OperandStatistics& result) {
  using namespace statistics_detail;
  result = {};
  const StatisticsCounts& counts = parts.counts;
  const double all = static_cast<double>(parts.elements);
  result.nonfinite_count = static_cast<double>(counts.nonfinite);
  result.underflow_fraction = static_cast<double>(counts.underflow) / all;
  result.saturation_fraction = static_cast<double>(counts.saturated) / all;
  describe_channels(parts.channels, result);
  describe_errors(parts.sums, all - result.nonfinite_count, result);
  describe_scales(parts, result);
  result.hash = parts.hash;
}

FP8LAB_HD inline OperandStatistics describe_statistics(const StatisticsParts& parts) {
  OperandStatistics result;
  describe_scalars(parts, result);
  const std::int64_t all = exponents_counted(parts.counts);
  for (int i = 0; i < kExponentBins; ++i) {
    result.exponent_histogram[i] = exponent_fraction(parts.counts, all, i);
  }
  return result;
}

}  // namespace fp8lab
