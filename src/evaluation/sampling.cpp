#include "src/evaluation/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kDomain = 0x5a3e1e00u;  ///< differs from all other uses of the seed
constexpr double kLeastExponent = -1000;        ///< smaller weights are negligible

double open_unit(const DrawKey& key) {
  const numerics::PhiloxCounter bits = numerics::philox4x32(
      {{key.problem, key.sample, key.position, kDomain}},
      {{static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)}});
  const std::uint64_t upper = std::uint64_t{bits.word[0]} << 21 | bits.word[1] >> 11;
  return (static_cast<double>(upper) + 0.5) * 0x1p-53;
}

/// The tokens that can be drawn, and their weights.
class Candidates {
 public:
  Candidates(std::span<const float> logits, double temperature, std::int32_t excluded)
      : logits_(logits) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (std::isnan(logits[i]) || static_cast<std::int32_t>(i) == excluded) continue;
      largest = std::max(largest, logits[i]);
      ids_.push_back(static_cast<std::int32_t>(i));
    }
    // If there are infinite logits, they share the whole weight. Logits of minus infinity get
    // no weight, unless all are.
    const double factor = std::numbers::log2e / temperature;
    weights_.resize(logits.size(), 0.0);
    for (const std::int32_t id : ids_) {
      const double below = logit(id) == largest
                               ? 0.0
                               : static_cast<double>(logit(id)) - static_cast<double>(largest);
      const double exponent = below * factor;
      weights_[static_cast<std::size_t>(id)] =
          exponent < kLeastExponent ? 0.0 : numerics::exp2_f64(exponent);
    }
  }

  bool empty() const { return ids_.empty(); }

  void keep_largest(std::int64_t count) {
    if (count >= static_cast<std::int64_t>(ids_.size())) return;
    std::nth_element(ids_.begin(), ids_.begin() + count, ids_.end(),
                     [this](std::int32_t a, std::int32_t b) { return is_above(a, b); });
    ids_.resize(static_cast<std::size_t>(count));
  }

  void keep_share(double share) {
    std::sort(ids_.begin(), ids_.end(),
              [this](std::int32_t a, std::int32_t b) { return is_above(a, b); });
    const double goal = share * sum();
    double reached = 0;
    std::size_t count = 0;
    while (count < ids_.size() && (count == 0 || reached < goal)) reached += weight(ids_[count++]);
    ids_.resize(count);
  }

  std::int32_t draw(double u) {
    std::sort(ids_.begin(), ids_.end());
    const double goal = u * sum();
    double reached = 0;
    for (const std::int32_t id : ids_) {
      reached += weight(id);
      if (reached > goal) return id;
    }
    return ids_.back();
  }

 private:
  /// Order in which top_k and top_p select tokens.
  bool is_above(std::int32_t a, std::int32_t b) const {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  }
  float logit(std::int32_t id) const { return logits_[static_cast<std::size_t>(id)]; }
  double weight(std::int32_t id) const { return weights_[static_cast<std::size_t>(id)]; }
  double sum() const {
    return std::accumulate(ids_.begin(), ids_.end(), 0.0,
                           [&](double total, std::int32_t id) { return total + weight(id); });
  }

  std::span<const float> logits_;
  std::vector<std::int32_t> ids_;
  std::vector<double> weights_;
};

std::int32_t largest(std::span<const float> logits, std::int32_t excluded) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (std::isnan(logits[i]) || id == excluded) continue;
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = id;
  }
  return best;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits, const SamplingConfig& sampling,
                          const DrawKey& key, std::int32_t excluded) {
  if (sampling.temperature == 0.0) {
    const std::int32_t best = largest(logits, excluded);
    if (best < 0) throw RuntimeFailure("no token can follow: all logits are NaN");
    return best;
  }
  Candidates candidates(logits, sampling.temperature, excluded);
  if (candidates.empty()) throw RuntimeFailure("no token can follow: all logits are NaN");
  if (sampling.top_k > 0) candidates.keep_largest(sampling.top_k);
  if (sampling.top_p < 1.0) candidates.keep_share(sampling.top_p);
  return candidates.draw(open_unit(key));
}

}  // namespace fp8lab
