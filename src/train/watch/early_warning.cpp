#include "src/train/watch/early_warning.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"

namespace fp8lab {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
/// Standard deviation over median absolute deviation of normal numbers.
constexpr double kMadToDeviation = 1.4826;

struct DetectorRow {
  Detector detector;
  std::string_view name;
  double WarningsConfig::*threshold;
};
constexpr std::array<DetectorRow, kDetectors.size()> kRows = {{
    {Detector::outlier_channels, "outlier_channels", &WarningsConfig::outlier_channels},
    {Detector::swiglu_alignment, "swiglu_alignment", &WarningsConfig::swiglu_alignment},
    {Detector::kurtosis, "kurtosis", &WarningsConfig::kurtosis},
    {Detector::scale_drift, "scale_drift", &WarningsConfig::scale_drift},
    {Detector::amax_lag, "amax_lag", &WarningsConfig::amax_lag},
    {Detector::gradient_norm, "gradient_norm", &WarningsConfig::gradient_norm},
}};

const DetectorRow& row_of(Detector detector) { return kRows[static_cast<std::size_t>(detector)]; }

bool is_positive(double value) { return value > 0.0 && std::isfinite(value); }

double median_of(std::vector<double> values) {
  const std::size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Returns amax over the range of an operand's scale. An element that became infinite is not in
/// amax.
double lag_of(const OperandStatistics& statistics, double range) {
  if (statistics.nonfinite_count > 0.0) return std::numeric_limits<double>::infinity();
  const bool has_scale = !std::isnan(statistics.scale_max);  // false if all tiles are flushed
  return statistics.amax / (has_scale ? statistics.scale_max * range : 0.0);
}

/// Returns the larger of two scores of one detector, with the sum of their counts.
void raise(std::optional<WarningScore>& largest, const WarningScore& score) {
  const std::int64_t count = (largest ? largest->count : 0) + score.count;
  if (!largest || score.value > largest->value) largest = score;
  largest->count = count;
}

}  // namespace

std::string_view name_of(Detector detector) { return row_of(detector).name; }

std::optional<Detector> detector_of(std::string_view name) {
  for (const DetectorRow& row : kRows) {
    if (row.name == name) return row.detector;
  }
  return std::nullopt;
}

double threshold(const WarningsConfig& config, Detector detector) {
  return config.*row_of(detector).threshold;
}

double DriftWindow::median() const {
  if (logs_.empty()) return kUnknown;
  return std::exp2(median_of({logs_.begin(), logs_.end()}));
}

double DriftWindow::deviations(double value) const {
  if (logs_.size() < kLeast || !is_positive(value)) return kUnknown;
  const double middle = median_of({logs_.begin(), logs_.end()});
  std::vector<double> distances;
  for (const double log : logs_) distances.push_back(std::abs(log - middle));
  const double spread = std::max(kMadToDeviation * median_of(std::move(distances)), kFloor);
  return (numerics::log2_f64(value) - middle) / spread;
}

void DriftWindow::add(double value) {
  if (!is_positive(value)) return;
  logs_.push_back(numerics::log2_f64(value));
  if (logs_.size() > length_) logs_.pop_front();
}

WatchedOperand watched_operand(Slot slot, const QuantSpec& spec) {
  WatchedOperand operand = watched_activation(spec);
  operand.is_activation = slot == Slot::fprop_x;
  return operand;
}

WatchedOperand watched_activation(const QuantSpec& spec) {
  WatchedOperand operand;
  operand.has_scales = spec.is_quantized() && spec.has_scale();
  const bool is_fixed = spec.is_cast() && spec.scale_source != ScaleSource::current;
  if (is_fixed) operand.fixed_range = static_cast<double>(numerics::max_finite(spec.format));
  return operand;
}

void EarlyWarning::begin_stage(std::vector<WatchedOperand> operands) {
  operands_ = std::move(operands);
  windows_.resize(operands_.size());
  for (Windows& windows : windows_) {
    windows.amax.clear();
    windows.scale.clear();
  }
  gradient_.clear();
  gradient_warned_ = false;
  largest_gradient_.reset();
}

std::optional<WarningScore> EarlyWarning::scored(Detector detector, double value,
                                                 std::int32_t operand, std::int32_t channel) const {
  if (std::isnan(value)) return std::nullopt;
  WarningScore score{detector, value / threshold(config_, detector), value, operand, channel};
  score.count = score.warns() ? 1 : 0;
  return score;
}

std::optional<WarningScore> EarlyWarning::judge_gradient(double norm) const {
  return scored(Detector::gradient_norm, gradient_.deviations(norm));
}

bool EarlyWarning::is_gradient_spike(double norm) const {
  const std::optional<WarningScore> score = judge_gradient(norm);
  return score && score->warns() && !gradient_warned_;
}

std::optional<WarningScore> EarlyWarning::add_gradient(double norm) {
  std::optional<WarningScore> score = judge_gradient(norm);
  gradient_warned_ = score && score->warns();
  if (score) {
    raise(largest_gradient_, *score);
    keep(*score);
  }
  gradient_.add(norm);
  return score;
}

std::vector<WarningScore> EarlyWarning::add_statistics(
    const std::vector<OperandStatistics>& statistics,
    const std::vector<std::uint8_t>& without_history, const std::vector<Alignment>& alignments) {
  FP8LAB_ASSERT(statistics.size() == operands_.size() &&
                without_history.size() == operands_.size());
  std::array<std::optional<WarningScore>, kDetectors.size()> largest;
  const auto found = [&](const std::optional<WarningScore>& score) {
    if (score) raise(largest[static_cast<std::size_t>(score->detector)], *score);
  };
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const OperandStatistics& now = statistics[i];
    if (now.is_absent()) continue;
    Windows& before = windows_[i];
    before.amax.add(now.amax);  // amax before the cast does not depend on the scale
    if (without_history[i] != 0) continue;
    const auto operand = static_cast<std::int32_t>(i);
    const auto channel = static_cast<std::int32_t>(now.top_channel[0]);
    if (operands_[i].is_activation) {
      found(scored(Detector::outlier_channels,
                   before.outliers.deviations(now.channel_outlier_ratio), operand, channel));
      found(scored(Detector::kurtosis, before.kurtosis.deviations(now.kurtosis), operand));
    }
    if (operands_[i].has_scales) {
      found(
          scored(Detector::scale_drift, std::abs(before.scale.deviations(now.scale_max)), operand));
    }
    if (operands_[i].fixed_range > 0.0) {
      found(scored(Detector::amax_lag, lag_of(now, operands_[i].fixed_range), operand, channel));
    }
    before.outliers.add(now.channel_outlier_ratio);
    before.kurtosis.add(now.kurtosis);
    before.scale.add(now.scale_max);
  }
  for (const Alignment& alignment : alignments) {
    std::optional<WarningScore> score =
        scored(Detector::swiglu_alignment, alignment.moved, alignment.operand, alignment.channel);
    if (score) score->count = alignment.count;
    found(score);
  }
  largest[static_cast<std::size_t>(Detector::gradient_norm)] =
      std::exchange(largest_gradient_, std::nullopt);
  std::vector<WarningScore> scores;
  for (const auto& score : largest) {
    if (!score) continue;
    scores.push_back(*score);
    keep(*score);
  }
  return scores;
}

void EarlyWarning::keep(const WarningScore& score) {
  const auto place = std::lower_bound(
      scores_.begin(), scores_.end(), score.detector,
      [](const WarningScore& kept, Detector detector) { return kept.detector < detector; });
  if (place != scores_.end() && place->detector == score.detector) {
    *place = score;
  } else {
    scores_.insert(place, score);
  }
}

double EarlyWarning::usual_amax(std::size_t operand) const {
  return windows_.at(operand).amax.median();
}

}  // namespace fp8lab
