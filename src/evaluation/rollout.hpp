// Measures the difference between the numerics of generation and those of training.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/model/transformer.hpp"

namespace fp8lab {

/// Log-probabilities in nats of the tokens of one completion, from two computations.
struct RolloutTokens {
  std::vector<double> rollout;  ///< computed during generation
  std::vector<double> training;
};

/// Returns the index of the first token whose two log-probabilities differ in their bits; -1: none.
std::int64_t first_difference(const RolloutTokens& completion);

/// Statistics of gap = training - rollout and of the ratio r = exp(gap) over all tokens.
struct RolloutGap {
  std::int64_t tokens = 0;
  std::int64_t different = 0;  ///< tokens with different bits of the log-probabilities
  double mean = 0;             ///< mean of gap
  double largest = 0;          ///< maximum of |gap|
  double k3 = 0;  ///< mean of r - 1 - log r, as expm1(gap) - gap: a nonnegative estimate of the KL
                  ///< divergence of training from rollout
  double clipped_share = 0;  ///< share of tokens with r > clip
  double clipped_mean = 0;   ///< mean of min(r, clip), the weight of truncated importance sampling
  struct Bucket {
    std::int64_t first = 0;  ///< position in the completion
    std::int64_t tokens = 0;
    std::int64_t different = 0;
    double largest = 0;  ///< maximum of |gap|
    double k3 = 0;
  };
  std::vector<Bucket> buckets;  ///< `bucket` positions each, up to the longest completion
};

/// Measures the gaps. Preconditions: `clip` > 0, `bucket` >= 1. Sums run over
/// completions and positions in order.
RolloutGap measure_gap(const std::vector<RolloutTokens>& completions, double clip,
                       std::int64_t bucket);

/// Distribution of |gap| over tokens; a NaN counts as infinite.
struct GapSpread {
  static constexpr std::array<double, 4> kShares = {0.5, 0.9, 0.99, 0.999};
  static constexpr std::array<double, 8> kEdges = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0};

  /// The smallest |gap| that is not exceeded by at least this share of the tokens.
  std::array<double, kShares.size()> quantiles{};
  std::int64_t zero = 0;  ///< number of tokens with gap 0
  /// Numbers of tokens with a gap below the first edge, between neighbouring edges,
  /// and from the last edge on.
  std::array<std::int64_t, kEdges.size() + 1> counts{};
};
GapSpread spread_of(const std::vector<RolloutTokens>& completions);

/// Creates a model of the same shape as `trained` that generates under `recipe` from its weights.
/// Throws Error for a recipe that the backend refuses, that has other activations than training, or
/// that has delayed scales, for which no history exists.
std::unique_ptr<Transformer> make_rollout_model(Backend& backend, const Parameters& parameters,
                                                const Transformer& trained, const Recipe& recipe);

}  // namespace fp8lab
