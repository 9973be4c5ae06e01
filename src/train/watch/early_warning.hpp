// Detectors of training that is about to break, fed with what a run logs anyway.
//
// Every detector makes a value of its quantity q at a step; score = value / threshold, and from a
// score of 1 on it warns. Thresholds are those of the [warnings] table (WarningsConfig).
//
// | detector         | q                                        | of                 | value     |
// |------------------|------------------------------------------|--------------------|-----------|
// | outlier_channels | largest over median channel amax [1]     | x of every layer   | growth    |
// | swiglu_alignment | magnitude of the cosine of the gate and  | gate_up of every   | share of  |
// |                  | up weights of a channel [2]              | layer              | the way   |
// | kurtosis         | mean(x^4) / mean(x^2)^2 [3]              | x of every layer   | growth    |
// | scale_drift      | largest decode scale                     | operands in up to  | change    |
// |                  |                                          | 8 bits with scales |           |
// | amax_lag         | amax / (scale * largest of the format)   | operands whose     | ratio     |
// |                  | [4]                                      | scale is not that  |           |
// |                  |                                          | of the tensor      |           |
// | gradient_norm    | norm of all gradients before clipping    | the step           | growth    |
// |                  | [5]                                      |                    |           |
//
// Growth is in robust deviations [6] of log2 q from its own earlier window,
//   (log2 q - median) / max(1.4826 * MAD, floor),
// change is its magnitude. The share of the way is (q - start) / (1 - start), from the start of the
// run; channels that started at the threshold or above do not count. Of several layers or operands
// the largest value counts.
//
// [1] Dettmers et al. 2022 (arXiv:2208.07339): outlier features. [2] Fishman et al. 2024
// (arXiv:2409.12517): aligned rows w1 and w2 square an activation. [3] Hernandez-Cano et al. 2025
// (arXiv:2505.20524): kurtosis rises before the loss diverges. [4] Micikevicius et al. 2022
// (arXiv:2209.05433): values beyond the range of a scale from earlier steps saturate. [5] Huang
// et al. 2025 (arXiv:2501.06842): spikes of gradients come before those of the loss. [6] Iglewicz
// and Hoaglin 1993. The drift of scales has no published rule that we know of.
//
// The detectors do not see growth that is slow compared with their window, anything between two
// logged steps except the gradient norm, or a cause that no operand of a linear layer shows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "emulation/ops/quantize/operand_statistics.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "emulation/spec/slot.hpp"
#include "src/config/config.hpp"
#include "src/train/watch/swiglu_alignment.hpp"

namespace fp8lab {

enum class Detector : std::uint8_t {
  outlier_channels,
  swiglu_alignment,
  kurtosis,
  scale_drift,
  amax_lag,
  gradient_norm,
};
inline constexpr std::array kDetectors = {Detector::outlier_channels, Detector::swiglu_alignment,
                                          Detector::kurtosis,         Detector::scale_drift,
                                          Detector::amax_lag,         Detector::gradient_norm};
std::string_view name_of(Detector detector);
/// Returns nothing for an unknown name.
std::optional<Detector> detector_of(std::string_view name);
double threshold(const WarningsConfig& config, Detector detector);

/// Result of a detector at a step.
struct WarningScore {
  Detector detector = Detector::gradient_norm;
  double score = 0;
  double value = 0;
  std::int32_t operand =
      -1;  ///< operand with the value: slot of a layer, in the order of the statistics
  std::int32_t channel = -1;  ///< channel of the operand
  /// Number of operands that warn; of channels for swiglu_alignment, of rows for gradient_norm.
  std::int64_t count = 0;
  bool warns() const { return score >= 1.0; }
};

/// Window of the last values of a positive quantity.
class DriftWindow {
 public:
  static constexpr std::size_t kLeast = 4;  ///< fewest values for a deviation
  static constexpr double kFloor = 0.25;    ///< lower bound of the spread, in octaves

  explicit DriftWindow(std::size_t length) : length_(length) {}

  /// Returns the robust deviations of `value` from the window; NaN if the window has too few values
  /// or `value` is not positive.
  double deviations(double value) const;
  /// Returns the median of the window; NaN if it is empty.
  double median() const;
  /// Ignores values that are not positive and finite.
  void add(double value);
  void clear() { logs_.clear(); }

 private:
  std::size_t length_;
  std::deque<double> logs_;  ///< log2, the newest last
};

/// Properties of a logged operand that detectors use.
struct WatchedOperand {
  bool is_activation = false;  ///< x, without transform
  bool has_scales = false;     ///< scales that follow its magnitude
  /// Largest magnitude of its format if its scale is delayed, static or missing; else 0.
  double fixed_range = 0;
};
WatchedOperand watched_operand(Slot slot, const QuantSpec& spec);
/// Of an activation that is saved by `spec`. Its magnitudes are those of an x or close to it.
WatchedOperand watched_activation(const QuantSpec& spec);

class EarlyWarning {
 public:
  static constexpr std::size_t kLoggedSteps = 16;   ///< window of operand statistics
  static constexpr std::size_t kGradientRows = 50;  ///< window of the gradient norm

  /// Thresholds are positive (WarningsConfig refuses others).
  explicit EarlyWarning(const WarningsConfig& config) : config_(config) {}

  /// Call before the first step of a stage. Keeps the windows of activations and clears the others:
  /// scales and gradients depend on the recipe, the loss mask and the number of tokens.
  void begin_stage(std::vector<WatchedOperand> operands);

  /// Returns the score of a gradient norm that is not in the window yet.
  std::optional<WarningScore> judge_gradient(double norm) const;
  /// Returns true if that norm warns and the previous one did not.
  bool is_gradient_spike(double norm) const;
  /// Adds a row of /metrics. Returns its score.
  std::optional<WarningScore> add_gradient(double norm);
  /// Adds a logged step, after its row of /metrics. Operands without history contribute only their
  /// amax. Returns the score of every detector that has one; for the gradient norm the largest
  /// since the last logged step.
  std::vector<WarningScore> add_statistics(const std::vector<OperandStatistics>& statistics,
                                           const std::vector<std::uint8_t>& without_history,
                                           const std::vector<Alignment>& alignments);

  /// Returns the latest score of each detector, in the order of detectors.
  const std::vector<WarningScore>& scores() const { return scores_; }
  /// Restores scores from before an interruption.
  void keep(const WarningScore& score);

  /// Returns the median amax of the operand over the window; NaN if unknown.
  double usual_amax(std::size_t operand) const;

 private:
  struct Windows {
    DriftWindow amax{kLoggedSteps}, outliers{kLoggedSteps}, kurtosis{kLoggedSteps},
        scale{kLoggedSteps};
  };
  /// Returns nothing for an unknown value.
  std::optional<WarningScore> scored(Detector detector, double value, std::int32_t operand = -1,
                                     std::int32_t channel = -1) const;

  WarningsConfig config_;
  std::vector<WatchedOperand> operands_;
  std::vector<Windows> windows_;
  DriftWindow gradient_{kGradientRows};
  bool gradient_warned_ = false;
  std::optional<WarningScore> largest_gradient_;  ///< since the last logged step
  std::vector<WarningScore> scores_;
};

}  // namespace fp8lab
