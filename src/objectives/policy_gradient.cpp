#include "src/objectives/policy_gradient.hpp"

#include <limits>

namespace fp8lab {

std::vector<MetricColumn> PolicyGradient::metrics() const {
  return {{"advantage", "1", "mean advantage of the step's trained tokens"}};
}

std::vector<double> PolicyGradient::measure(std::span<const Batch> batches) const {
  double sum = 0;
  std::int64_t tokens = 0;
  for (const Batch& batch : batches) {
    for (const float advantage : batch[kAdvantages]) sum += static_cast<double>(advantage);
    tokens += batch.trained_tokens;
  }
  return {tokens > 0 ? sum / static_cast<double>(tokens)
                     : std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace fp8lab
