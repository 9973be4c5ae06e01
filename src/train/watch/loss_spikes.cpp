#include "src/train/watch/loss_spikes.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace fp8lab {

double LossSpikes::limit() const {
  std::vector<double> past;
  std::copy_if(past_.begin(), past_.end(), std::back_inserter(past),
               [](double loss) { return std::isfinite(loss); });
  if (rows_ < kLeast || past.size() < kLeast) return std::numeric_limits<double>::infinity();
  const auto count = static_cast<double>(past.size());
  double sum = 0, squares = 0;
  for (const double loss : past) sum += loss;
  const double mean = sum / count;
  for (const double loss : past) squares += (loss - mean) * (loss - mean);
  const double reference = std::isfinite(past_.back()) ? average_ / weight_ : mean;
  return reference + kSigmas * std::sqrt(squares / (count - 1.0));
}

void LossSpikes::add(double loss) {
  above_ = loss > limit();
  const double keep = std::exp2(-2.0 / kWindow);
  const bool finite = std::isfinite(loss);
  average_ = keep * average_ + (finite ? (1.0 - keep) * loss : 0.0);
  weight_ = keep * weight_ + (finite ? 1.0 - keep : 0.0);
  past_.push_back(loss);
  if (past_.size() > kWindow) past_.pop_front();
  ++rows_;
}

}  // namespace fp8lab
