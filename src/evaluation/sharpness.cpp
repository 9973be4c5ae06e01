#include "src/evaluation/sharpness.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "emulation/numerics/exact_math.hpp"

namespace fp8lab {
namespace {

constexpr double kNothing = -1000.0;  ///< log2 of a share too small to affect a sum

/// Returns log(sum of exp(logit_i)) - logit_target for the logits moved(i);
/// NaN unless all are finite.
template <class Moved>
double cross_entropy(std::size_t count, std::size_t target, Moved moved) {
  double largest = moved(0);
  for (std::size_t i = 1; i < count; ++i) largest = std::max(largest, moved(i));
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(moved(i))) return std::numeric_limits<double>::quiet_NaN();
    sum += numerics::exp2_f64(std::max((moved(i) - largest) * std::numbers::log2e, kNothing));
  }
  return numerics::log2_f64(sum) / std::numbers::log2e + largest - moved(target);
}

}  // namespace

Sharpness::Token Sharpness::measure(std::span<const float> logits, std::int32_t target) const {
  const auto at = static_cast<std::size_t>(target);
  const auto value = [&](std::size_t i) { return static_cast<double>(logits[i]); };
  Token token;
  token.loss = cross_entropy(logits.size(), at, value);
  token.raised = cross_entropy(logits.size(), at, [&](std::size_t i) {
    const double bound = epsilon_ * (std::abs(value(i)) + 1.0);
    return i == at ? value(i) - bound : value(i) + bound;
  });
  return token;
}

void Sharpness::add(const Token& token) {
  loss_ += token.loss;
  raised_ += token.raised;
  ++tokens_;
}

double Sharpness::phi() const {
  if (tokens_ == 0) return std::numeric_limits<double>::quiet_NaN();
  const double mean = loss_ / static_cast<double>(tokens_);
  return 100.0 * (raised_ / static_cast<double>(tokens_) - mean) / (1.0 + mean);
}

}  // namespace fp8lab
