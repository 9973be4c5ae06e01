// Sharpness of the loss around the logits of a model ("To FP8 and Back Again", arXiv:2405.18710).
#pragma once

#include <cstdint>
#include <span>

namespace fp8lab {

/// phi = 100 (max f(y + z) - f(y)) / (1 + f(y)) over |z_i| <= epsilon (|y_i| + 1), where y are the
/// logits of all tokens and f the mean cross-entropy in nats. f increases in every logit except the
/// target's, so the maximum has each z_i at its bound and needs no search. Computed in double.
class Sharpness {
 public:
  /// Precondition: `epsilon` > 0.
  explicit Sharpness(double epsilon) : epsilon_(epsilon) {}

  /// The losses of one token.
  struct Token {
    double loss = 0, raised = 0;  ///< f(y) and its maximum
  };
  /// Returns those of a token from its logits, finite or not, and the index of its target.
  Token measure(std::span<const float> logits, std::int32_t target) const;
  /// Adds one token.
  void add(const Token& token);
  /// measure, then add.
  void add(std::span<const float> logits, std::int32_t target) { add(measure(logits, target)); }
  /// Returns phi; NaN if no token was added.
  double phi() const;
  std::int64_t tokens() const { return tokens_; }

 private:
  double epsilon_;
  double loss_ = 0, raised_ = 0;  ///< sums of f(y) and of its maxima
  std::int64_t tokens_ = 0;
};

}  // namespace fp8lab
