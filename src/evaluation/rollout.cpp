#include "src/evaluation/rollout.hpp"

#include <algorithm>
#include <cmath>

#include "emulation/base/error.hpp"

namespace fp8lab {

RolloutGap measure_gap(const std::vector<RolloutTokens>& completions, double clip,
                       std::int64_t bucket) {
  RolloutGap result;
  for (const RolloutTokens& completion : completions) {
    FP8LAB_ASSERT(completion.rollout.size() == completion.training.size());
    for (std::size_t i = 0; i < completion.rollout.size(); ++i) {
      const double gap = completion.training[i] - completion.rollout[i];
      const double ratio = std::exp(gap), k3 = std::expm1(gap) - gap;
      const std::size_t index = i / static_cast<std::size_t>(bucket);
      if (index == result.buckets.size()) {
        result.buckets.push_back({static_cast<std::int64_t>(index) * bucket, 0, 0});
      }
      ++result.tokens;
      result.mean += gap;
      result.largest = std::max(result.largest, std::fabs(gap));
      result.k3 += k3;
      result.clipped_share += ratio > clip ? 1.0 : 0.0;
      result.clipped_mean += std::min(ratio, clip);
      ++result.buckets[index].tokens;
      result.buckets[index].k3 += k3;
    }
  }
  if (result.tokens == 0) return result;
  const auto tokens = static_cast<double>(result.tokens);
  for (double* sum : {&result.mean, &result.k3, &result.clipped_share, &result.clipped_mean}) {
    *sum /= tokens;
  }
  for (RolloutGap::Bucket& part : result.buckets) part.k3 /= static_cast<double>(part.tokens);
  return result;
}

}  // namespace fp8lab
