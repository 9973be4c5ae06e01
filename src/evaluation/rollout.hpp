// How far the numerics that generate are from those that train.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab {

/// Log-probabilities of the same tokens of one completion, in nats.
struct RolloutTokens {
  std::vector<double> rollout;  ///< when they were generated
  std::vector<double> training;
};

/// With gap = training - rollout and ratio r = exp(gap) of every token (recipes.md section 8).
struct RolloutGap {
  std::int64_t tokens = 0;
  double mean = 0;           ///< of gap
  double largest = 0;        ///< of |gap|
  double k3 = 0;             ///< mean of r - 1 - log r, as expm1(gap) - gap: an estimate of the KL
                             ///< divergence of training from rollout that is never negative
  double clipped_share = 0;  ///< of tokens with r > clip
  double clipped_mean = 0;   ///< of min(r, clip), the weight of truncated importance sampling
  struct Bucket {
    std::int64_t first = 0;  ///< position in the completion
    std::int64_t tokens = 0;
    double k3 = 0;
  };
  std::vector<Bucket> buckets;  ///< of `bucket` positions each, as far as completions go
};

/// `clip` > 0, `bucket` >= 1. Sums run over completions and positions in order.
RolloutGap measure_gap(const std::vector<RolloutTokens>& completions, double clip,
                       std::int64_t bucket);

}  // namespace fp8lab
