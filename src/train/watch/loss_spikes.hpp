// Loss spikes as fp8lab_analysis.judge.stats.spike_rows defines them, one row at a time.
#pragma once

#include <deque>

namespace fp8lab {

/// Detects spikes in the losses of one stage, in nats, in the order of /metrics.
class LossSpikes {
 public:
  static constexpr double kSigmas = 5.0;
  static constexpr int kWindow = 100;  ///< rows
  static constexpr int kLeast = 10;    ///< fewest finite rows before a spike

  /// Returns the loss above which the next row is a spike: the exponential average of the previous
  /// rows (half-life kWindow / 2 rows, bias-corrected) plus kSigmas sample deviations of the last
  /// kWindow rows. Infinite for too few rows.
  double limit() const;
  /// Adds a row. Returns true if it starts a spike: consecutive rows above their limits are one
  /// spike.
  bool is_start(double loss) const { return loss > limit() && !above_; }
  void add(double loss);

 private:
  std::deque<double> past_;  ///< the last kWindow losses
  long rows_ = 0;
  double average_ = 0, weight_ = 0;
  bool above_ = false;  ///< true if the last row was above its limit
};

}  // namespace fp8lab
