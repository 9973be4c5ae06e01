// How far the numerics that generate are from those that train.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/model/transformer.hpp"

namespace fp8lab {

/// Log-probabilities of the same tokens of one completion, in nats.
struct RolloutTokens {
  std::vector<double> rollout;  ///< when they were generated
  std::vector<double> training;
};

/// The first token whose two log-probabilities are not the same bits; -1: none.
std::int64_t first_difference(const RolloutTokens& completion);

/// With gap = training - rollout and ratio r = exp(gap) of every token.
struct RolloutGap {
  std::int64_t tokens = 0;
  std::int64_t different = 0;  ///< tokens whose two log-probabilities are not the same bits
  double mean = 0;             ///< of gap
  double largest = 0;          ///< of |gap|
  double k3 = 0;             ///< mean of r - 1 - log r, as expm1(gap) - gap: an estimate of the KL
                             ///< divergence of training from rollout that is never negative
  double clipped_share = 0;  ///< of tokens with r > clip
  double clipped_mean = 0;   ///< of min(r, clip), the weight of truncated importance sampling
  struct Bucket {
    std::int64_t first = 0;  ///< position in the completion
    std::int64_t tokens = 0;
    std::int64_t different = 0;
    double largest = 0;  ///< of |gap|
    double k3 = 0;
  };
  std::vector<Bucket> buckets;  ///< of `bucket` positions each, as far as completions go
};

/// `clip` > 0, `bucket` >= 1. Sums run over completions and positions in order.
RolloutGap measure_gap(const std::vector<RolloutTokens>& completions, double clip,
                       std::int64_t bucket);

/// How |gap| is distributed over tokens; a NaN counts as infinite.
struct GapSpread {
  static constexpr std::array<double, 4> kShares = {0.5, 0.9, 0.99, 0.999};
  static constexpr std::array<double, 8> kEdges = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0};

  /// The smallest |gap| that at least this share of the tokens does not exceed.
  std::array<double, kShares.size()> quantiles{};
  std::int64_t zero = 0;  ///< tokens without a gap
  /// Tokens with a gap below the first edge, from each edge to below the next, from the last on.
  std::array<std::int64_t, kEdges.size() + 1> counts{};
};
GapSpread spread_of(const std::vector<RolloutTokens>& completions);

/// A model that generates in `recipe` from the weights of `trained`, of its shape. Throws Error for
/// a recipe that the backend refuses, of other activations than training, or with delayed scales,
/// whose history there is not.
std::unique_ptr<Transformer> make_rollout_model(Backend& backend, const Parameters& parameters,
                                                const Transformer& trained, const Recipe& recipe);

}  // namespace fp8lab
