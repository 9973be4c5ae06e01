#include "emulation/ops/operand_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "emulation/ops/checks.hpp"
#include "emulation/ops/operand_checks.hpp"

namespace fp8lab {
namespace {

using numerics::bits_float;

constexpr double kExactDecibels = 200.0;

/// log2 of a positive finite number by the series of the inverse hyperbolic tangent: with x = m *
/// 2^e, sqrt(1/2) <= m < sqrt(2), z = (m-1)/(m+1), log2 m = 2/ln 2 * (z + z^3/3 + ...), where
/// |z| < 0.1716, so that 12 terms leave less than 2^-60.
double log2_of(double value) {
  int exponent = 0;
  double mantissa = std::frexp(value, &exponent);
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2.0;
    --exponent;
  }
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = z * z;
  double series = 0.0;
  for (int k = 12; k >= 0; --k) series = series * square + 1.0 / (2 * k + 1);
  return exponent + 2.8853900817779268 * (z * series);
}

constexpr double kDecibelsPerOctave = 3.0102999566398120;  // 10 log10 2

double ratio(double numerator, double denominator) {
  return denominator == 0.0 ? 0.0 : numerator / denominator;
}

void describe_errors(const StatisticsTotals& sums, double finite, OperandStatistics& result) {
  const double mean_square = ratio(sums.xx, finite);
  result.rms = std::sqrt(mean_square);
  result.mse = ratio(sums.ee, finite);
  result.bias = ratio(sums.e, sums.x);
  result.kurtosis = ratio(ratio(sums.xxxx, finite), mean_square * mean_square);
  result.crest_factor = ratio(result.amax, result.rms);
  if (sums.ee == 0.0) {
    result.sqnr_db = kExactDecibels;
  } else if (sums.xx == 0.0) {
    result.sqnr_db = -kExactDecibels;
  } else {
    const double decibels = kDecibelsPerOctave * (log2_of(sums.xx) - log2_of(sums.ee));
    result.sqnr_db = std::min(decibels, kExactDecibels);
  }
  const double norms = std::sqrt(sums.xx) * std::sqrt(sums.yy);
  result.cosine = sums.xx == 0.0 && sums.yy == 0.0 ? 1.0 : ratio(sums.xy, norms);
}

void describe_channels(const std::vector<std::uint32_t>& amax, OperandStatistics& result) {
  std::vector<std::size_t> order(amax.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t top =
      std::min(order.size(), static_cast<std::size_t>(OperandStatistics::kTopChannels));
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
      [&](std::size_t a, std::size_t b) { return amax[a] != amax[b] ? amax[a] > amax[b] : a < b; });
  for (std::size_t i = 0; i < static_cast<std::size_t>(OperandStatistics::kTopChannels); ++i) {
    result.top_channel[i] = i < top ? static_cast<double>(order[i]) : -1.0;
    result.top_channel_amax[i] = i < top ? bits_float(amax[order[i]]) : 0.0;
  }
  result.amax = result.top_channel_amax[0];

  std::vector<std::uint32_t> sorted = amax;
  std::sort(sorted.begin(), sorted.end());
  const double upper = bits_float(sorted[sorted.size() / 2]);
  const double lower = bits_float(sorted[(sorted.size() - 1) / 2]);
  const double median = (lower + upper) / 2.0;
  if (median == 0.0 && result.amax > 0.0) {
    result.channel_outlier_ratio = std::numeric_limits<double>::infinity();
  } else {
    result.channel_outlier_ratio = ratio(result.amax, median);
  }
}

void describe_scales(const StatisticsParts& parts, OperandStatistics& result) {
  result.zero_tile_fraction =
      static_cast<double>(parts.zero_tiles) / static_cast<double>(parts.tiles);
  if (parts.largest_scale == 0.0f) return;
  result.scale_min = parts.smallest_scale;
  result.scale_max = parts.largest_scale;
  result.scale_log2_spread = log2_of(result.scale_max) - log2_of(result.scale_min);
}

}  // namespace

StatisticsTotals& StatisticsTotals::operator+=(const StatisticsTotals& other) {
  xx += other.xx;
  xxxx += other.xxxx;
  xy += other.xy;
  yy += other.yy;
  ee += other.ee;
  e += other.e;
  x += other.x;
  return *this;
}

OperandStatistics describe_statistics(const StatisticsParts& parts) {
  OperandStatistics result{};
  const StatisticsCounts& counts = parts.counts;
  const double all = static_cast<double>(parts.elements);
  result.nonfinite_count = static_cast<double>(counts.nonfinite);
  result.underflow_fraction = static_cast<double>(counts.underflow) / all;
  result.saturation_fraction = static_cast<double>(counts.saturated) / all;
  describe_channels(parts.channel_amax, result);
  describe_errors(parts.sums, all - result.nonfinite_count, result);
  describe_scales(parts, result);
  const std::int64_t nonzero =
      std::accumulate(std::begin(counts.exponents), std::end(counts.exponents), std::int64_t{0});
  for (int i = 0; i < kExponentBins; ++i) {
    result.exponent_histogram[i] =
        ratio(static_cast<double>(counts.exponents[i]), static_cast<double>(nonzero));
  }
  result.hash = parts.hash;
  return result;
}

void ops::MeasureOperand::check() const {
  check_operand("operand_statistics", operand);
  check_matrix("operand_statistics", "source", source, transpose ? operand.k : operand.rows,
               transpose ? operand.rows : operand.k);
  Checks("operand_statistics").vector("record", record, sizeof(OperandStatistics), {DType::u8});
}

}  // namespace fp8lab
