#include "src/train/early_warning.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"

namespace fp8lab {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
/// Of the deviation of normal numbers by their median absolute deviation.
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

/// Rows of a weight that a group of outputs is made by.
struct RowRange {
  std::int64_t first = 0, count = 0;
};

std::optional<RowRange> rows_of(const ParameterDeclaration& weight, std::string_view group) {
  RowRange range;
  for (const OutputGroup& candidate : weight.groups) {
    range.count = candidate.rows;
    if (candidate.name == group) return range;
    range.first += candidate.rows;
  }
  return std::nullopt;
}

constexpr std::size_t kLanes = 8;

/// Lane i % 8 adds element i by ascending i; the lanes are added in order.
double dot(std::span<const float> a, std::span<const float> b) {
  std::array<double, kLanes> lanes{};
  const std::size_t whole = a.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (std::size_t i = whole; i < a.size(); ++i) {
    lanes[i - whole] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// |cosine|, 0 for a zero row.
double alignment_of(std::span<const float> gate, std::span<const float> up) {
  const double squares = dot(gate, gate) * dot(up, up);
  return squares > 0.0 ? std::abs(dot(gate, up)) / std::sqrt(squares) : 0.0;
}

Alignment alignment_of(const Parameters& parameters, const Parameter& weight, RowRange gate,
                       RowRange up, double level) {
  constexpr std::int64_t kBlockElements = std::int64_t{1} << 22;
  const std::int64_t width = weight.declaration.cols;
  const std::int64_t block = std::max<std::int64_t>(kBlockElements / width, 1);
  Alignment largest;
  for (std::int64_t first = 0; first < gate.count; first += block) {
    const std::int64_t rows = std::min(block, gate.count - first);
    std::vector<float> gates(static_cast<std::size_t>(rows * width)), ups(gates.size());
    parameters.download(weight, (gate.first + first) * width, gates);
    parameters.download(weight, (up.first + first) * width, ups);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = static_cast<std::size_t>(row * width);
      const auto length = static_cast<std::size_t>(width);
      const double cosine = alignment_of(std::span<const float>(gates).subspan(begin, length),
                                         std::span<const float>(ups).subspan(begin, length));
      if (cosine >= level) ++largest.count;
      if (largest.channel >= 0 && !(cosine > largest.cosine)) continue;
      largest.cosine = cosine;
      largest.channel = static_cast<std::int32_t>(first + row);
    }
  }
  return largest;
}

/// How far beyond the range of its scale an operand goes; amax leaves out what became infinite.
double lag_of(const OperandStatistics& statistics, double range) {
  if (statistics.nonfinite_count > 0.0) return std::numeric_limits<double>::infinity();
  return statistics.amax / (statistics.scale_max * range);
}

/// The larger of two scores of one detector, with the sum of their counts.
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
  WatchedOperand operand;
  operand.is_activation = slot == Slot::fprop_x;
  operand.has_scales = spec.is_quantized() && spec.has_scale();
  const bool is_fixed = spec.is_cast() && spec.scale_source != ScaleSource::current;
  if (is_fixed) operand.fixed_range = static_cast<double>(numerics::max_finite(spec.format));
  return operand;
}

std::vector<Alignment> swiglu_alignments(const Parameters& parameters, double level,
                                         std::int64_t turn) {
  const auto& linears = parameters.declaration().linears();
  std::vector<std::size_t> layers;
  std::int64_t largest = 1;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const Parameter& weight = parameters[linears[i].weight];
    if (!rows_of(weight.declaration, "gate") || !rows_of(weight.declaration, "up")) continue;
    layers.push_back(i);
    largest = std::max(largest, weight.master().size());
  }
  std::vector<Alignment> found;
  if (layers.empty()) return found;
  const auto all = static_cast<std::int64_t>(layers.size());
  const std::int64_t together = std::clamp<std::int64_t>(kAlignmentElements / largest, 1, all);
  for (std::int64_t k = 0; k < together; ++k) {
    const std::size_t i = layers[static_cast<std::size_t>((turn * together + k) % all)];
    const Parameter& weight = parameters[linears[i].weight];
    found.push_back(alignment_of(parameters, weight, *rows_of(weight.declaration, "gate"),
                                 *rows_of(weight.declaration, "up"), level));
    found.back().operand =
        static_cast<std::int32_t>(i * kSlots.size() + static_cast<std::size_t>(Slot::fprop_w));
  }
  return found;
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
    Windows& before = windows_[i];
    before.amax.add(now.amax);  // of the tensor before its cast, whatever its scale
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
        scored(Detector::swiglu_alignment, alignment.cosine, alignment.operand, alignment.channel);
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
