// When a loss spikes: the definition of fp8lab_analysis.judge.stats.spike_rows, one row at a time.
#pragma once

#include <deque>

namespace fp8lab {

/// Of the losses of one stage, in nats, in the order of the rows of /metrics.
class LossSpikes {
 public:
  static constexpr double kSigmas = 5.0;
  static constexpr int kWindow = 100;  ///< rows
  static constexpr int kLeast = 10;    ///< finite rows without which nothing is a spike

  /// The loss above which the next row is a spike: the exponential average of the rows so far, of a
  /// half-life of kWindow / 2 rows and corrected for its start, and kSigmas sample deviations of
  /// the kWindow rows before. Infinite where there are too few.
  double limit() const;
  /// True where the next row, of loss `loss`, starts a spike: neighbouring rows above their limits
  /// are one.
  bool is_start(double loss) const { return loss > limit() && !above_; }
  void add(double loss);

 private:
  std::deque<double> past_;  ///< the last kWindow losses
  long rows_ = 0;
  double average_ = 0, weight_ = 0;
  bool above_ = false;  ///< the last row was
};

}  // namespace fp8lab
