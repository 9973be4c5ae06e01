// Statistics of an operand, which a run logs: how well it represents its source.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "emulation/numerics/codec.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// Statistics of one logged operand (specification.md, "Statistics of a quantizer"), accumulated
/// in f64 in a fixed order.
struct OperandStatistics {
  static constexpr int kTopChannels = 8;
  double amax, rms, mse, sqnr_db, cosine, bias;
  double underflow_fraction;   ///< nonzero -> zero, of all elements
  double saturation_fraction;  ///< |x| above the largest representable magnitude of its tile
  double nonfinite_count;
  double kurtosis;               ///< uncentred: mean(x^4) / mean(x^2)^2
  double crest_factor;           ///< amax / rms
  double channel_outlier_ratio;  ///< largest over median channel amax (channels: source columns)
  double scale_min, scale_max, scale_log2_spread;  ///< all-zero tiles excluded
  double zero_tile_fraction;
  double top_channel[kTopChannels];  ///< source columns: descending amax, then ascending index
  double top_channel_amax[kTopChannels];
  double exponent_histogram[64];  ///< fraction of nonzero |x| by exponent -40..23, ends clamp
  /// Hash of codes and scales, defined by numerics::hash_term (numerics/operand_hash.hpp);
  /// the same on every backend.
  std::uint64_t hash;

  /// Returns the statistics of an operand that no GEMM of the step reads, such as those of the
  /// wgrad of a frozen layer: every number is NaN, there is no channel, and the hash is 0.
  static OperandStatistics absent() {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    OperandStatistics all{};
    for (double* const number :
         {&all.amax, &all.rms, &all.mse, &all.sqnr_db, &all.cosine, &all.bias,
          &all.underflow_fraction, &all.saturation_fraction, &all.nonfinite_count, &all.kurtosis,
          &all.crest_factor, &all.channel_outlier_ratio, &all.scale_min, &all.scale_max,
          &all.scale_log2_spread, &all.zero_tile_fraction}) {
      *number = kNaN;
    }
    std::fill(std::begin(all.top_channel), std::end(all.top_channel), -1.0);
    std::fill(std::begin(all.top_channel_amax), std::end(all.top_channel_amax), kNaN);
    std::fill(std::begin(all.exponent_histogram), std::end(all.exponent_histogram), kNaN);
    return all;
  }
  bool is_absent() const { return std::isnan(amax); }
};

/// Order of the FP64 sums, see ops::MeasureOperand.
struct StatisticsOrder {
  static constexpr int kPanelRows = 128, kPanelCols = 256;
  static constexpr int kLaneRows = 32, kLaneCols = 8;
};

inline constexpr int kExponentBins = 64;  ///< of OperandStatistics::exponent_histogram
inline constexpr int kLowestBinExponent = -40;

struct StatisticsCounts {
  std::int64_t nonfinite;                 ///< x or y is not finite
  std::int64_t underflow;                 ///< both finite, x is not zero, y is
  std::int64_t saturated;                 ///< |x| > limit
  std::int64_t exponents[kExponentBins];  ///< finite nonzero x with finite y, by exponent of x
};

/// Returns the largest FP32 magnitude that does not count as saturated in a tile of scale `scale`;
/// `qmax` is numerics::max_finite of the format.
FP8LAB_HD inline float saturation_limit(double qmax, float scale) {
  const float largest = numerics::bits_float(numerics::kF32MaxFinite);
  if (scale == 0.0f) return largest;  // flushed: underflow, not saturation
  const double limit = qmax * scale * (1.0 + 0x1p-22);
#ifdef __CUDA_ARCH__
  return fminf(__double2float_rd(limit), largest);
#else
  if (!(limit < largest)) return largest;
  const float rounded = static_cast<float>(limit);
  return rounded > limit ? numerics::bits_float(numerics::float_bits(rounded) - 1u) : rounded;
#endif
}

namespace ops {

/// Writes an OperandStatistics into `record` (u8, 1 x sizeof(OperandStatistics)). It compares
/// `operand` with `source` (R, C), bf16 or f32; with `transpose` the operand is (C, R). Runs on
/// logged steps only. Definitions of specification.md, "Statistics of a quantizer", with x the
/// source and y the operand's value, scale * decode(code).
///
/// With a transform along K, x is the transformed source: errors, ranges and channels (positions
/// along K) are those of the quantized tensor. If the transform is orthonormal (all but smoothing),
/// mse, sqnr_db and rms are also those of the untransformed tensor up to rounding. With a clamp the
/// source itself is compared with the value that enters the product: scale * decode(code), and if
/// the clamp is compensated RN(scale * decode(code) + numerics::clamp_residual(x));
/// saturation_fraction is that of the codes alone.
///
/// amax = max |x|; rms = sqrt(mean x^2); mse = mean (x-y)^2; bias = sum(y-x) / sum|x|;
/// sqnr_db = 10 log10(sum x^2 / sum (x-y)^2); cosine = sum xy / sqrt(sum x^2 sum y^2), where sum xy
/// is (sum x^2 + sum y^2 - sum (y-x)^2) / 2; kurtosis = mean x^4 / (mean x^2)^2; crest_factor =
/// amax / rms. These run over the elements for which x and y are both finite; nonfinite_count
/// counts the others. A quotient without a denominator is undefined: NaN. An all-zero tensor has no
/// sqnr_db; that of an exact nonzero tensor is +infinity, that of an error on a zero source
/// -infinity, and means exclude both. underflow_fraction: x != 0 and y = 0, of all elements.
/// saturation_fraction: |x| > Qmax * scale * (1 + 2^-22), of all elements. The allowance is for the
/// rounding of the scale itself (two roundings of at most 2^-24), so that current scaling of an
/// unclipped tile counts 0. A tile flushed by a zero scale counts as underflow alone. An expanded
/// tile, whose largest value is a code, never saturates. Channels are source columns:
/// channel_outlier_ratio = largest / median channel amax, the median of an even number being the
/// mean of the middle two; infinite if the median alone is 0. top_channel has the columns by
/// descending amax, then by ascending index; a column without finite elements has amax 0, and
/// entries beyond the number of columns are -1. scale_min, scale_max and scale_log2_spread run over
/// the tiles that are neither all zero nor flushed by a zero scale (NaN if there are none; an
/// operand without scales counts as one tile of scale 1). exponent_histogram: see
/// OperandStatistics; for an all-zero tensor it is 0.
///
/// Sums are FP64 in a fixed order. x^2 and y^2 are exact, x^4 is RN(x^2 x^2), and the addition of
/// RN(y-x)^2 is fused with its multiplication. A panel of 128 source rows and 256 columns has 4 x
/// 32 lanes: lane (r / 32, c / 8) adds its elements (r, c) by ascending row, then column. The lanes
/// are in the order of these indices; neighbours 2 l and 2 l + 1 are added, then neighbours among
/// these sums, until one is left. The panels of the same rows are added by ascending column, then
/// their sums by ascending row. describe_statistics computes the record from sums, counts and
/// columns. So the bits do not depend on threads, SIMD target, libm or backend.
struct MeasureOperand {
  static constexpr std::string_view kName = "measure_operand";
  static constexpr WorkClass kClass = WorkClass::measurement;

  TensorView source;
  bool transpose = false;
  const QuantizedOperand& operand;
  TensorView record;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_read_operand(visit, operand);
    visit(writes("record", record));
  }
  void check() const;
  /// Elements measured.
  double work() const { return elements(source); }
};

/// Measures `first`, of `source`, and `second`, of its transpose. A backend may
/// read the source only once.
struct MeasureBoth {
  static constexpr std::string_view kName = "measure_both";
  static constexpr WorkClass kClass = WorkClass::measurement;

  TensorView source;
  const QuantizedOperand& first;
  const QuantizedOperand& second;
  TensorView first_record;
  TensorView second_record;

  /// Calls visit(op) for the measurement of each operand.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    visit(MeasureOperand{.source = source, .operand = first, .record = first_record});
    visit(MeasureOperand{
        .source = source, .transpose = true, .operand = second, .record = second_record});
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_read_operand(visit, first);
    visit_read_operand(visit, second);
    visit(writes("first_record", first_record));
    visit(writes("second_record", second_record));
  }
  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Elements measured.
  double work() const { return 2 * elements(source); }
};

}  // namespace ops
}  // namespace fp8lab
