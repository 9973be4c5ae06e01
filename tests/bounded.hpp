// Running error analysis: a double-precision value with a bound on what rounding may have done.
//
// A test writes an operation's textbook formula on Bounded numbers. `value` is the exact result (up
// to double precision), `bound` a proven limit on |computed - value| for any computation that
// rounds each written FP32 operation once (Wilkinson's running error bounds). So tolerances are
// derived from the unit roundoffs and the lengths of sums, not chosen.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::test {

inline constexpr double kUnit = 0x1p-24;     ///< unit roundoff of FP32
inline constexpr double kUnitBf16 = 0x1p-8;  ///< unit roundoff of BF16
inline constexpr double kLn2Double = 0.693147180559945309417;
inline constexpr double kLog2EDouble = 1.44269504088896340736;

struct Bounded {
  double value = 0.0;
  double bound = 0.0;

  Bounded() = default;
  Bounded(double exact) : value(exact) {}  // NOLINT: an exact number is a Bounded
  Bounded(double v, double b) : value(v), bound(b) {}

  double magnitude() const { return std::fabs(value) + bound; }
};

/// One FP32 rounding on top of `bound`; 2^-150 covers results below the normal range.
inline Bounded rounded(double value, double bound) {
  return {value, bound + kUnit * (std::fabs(value) + bound) + 0x1p-150};
}
inline Bounded rounded_to_bf16(const Bounded& x) {
  return {x.value, x.bound + kUnitBf16 * x.magnitude() + 0x1p-134};
}

/// What a tensor of the type holds of x.
inline Bounded stored(const Bounded& x, DType dtype) {
  return dtype == DType::bf16 ? rounded_to_bf16(x) : x;
}

inline Bounded operator-(const Bounded& a) { return {-a.value, a.bound}; }
inline Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.bound + b.bound);
}
inline Bounded operator-(const Bounded& a, const Bounded& b) { return a + -b; }
inline Bounded operator*(const Bounded& a, const Bounded& b) {
  return rounded(a.value * b.value, a.magnitude() * b.bound + a.bound * std::fabs(b.value));
}
inline Bounded operator/(const Bounded& a, const Bounded& b) {
  const double smallest = std::fabs(b.value) - b.bound;
  const double quotient = a.value / b.value;
  return rounded(quotient, (a.bound + std::fabs(quotient) * b.bound) / smallest);
}
inline Bounded sqrt(const Bounded& x) {
  const double root = std::sqrt(x.value);
  return rounded(root, x.bound == 0.0 ? 0.0 : x.bound / (root + std::sqrt(x.value - x.bound)));
}

/// exact_math exp2: below 1 ulp.
inline Bounded exp2(const Bounded& x) {
  const double power = std::exp2(x.value);
  const double relative = std::expm1(kLn2Double * x.bound);
  return {power, power * (relative + 0x1p-23 * (1.0 + relative)) + 0x1p-149};
}
/// exact_math log2: below 2 ulp.
inline Bounded log2(const Bounded& x) {
  const double logarithm = std::log2(x.value);
  const double shift = kLog2EDouble * x.bound / (x.value - x.bound);
  return {logarithm, shift + 0x1p-22 * (std::fabs(logarithm) + shift) + 0x1p-148};
}
/// exact_math sigmoid: relative error below (2 + |x|) 2^-23, and 0 where its divisor may overflow.
inline Bounded sigmoid(const Bounded& x) {
  const double s = 1.0 / (1.0 + std::exp(-x.value));
  const double relative = std::expm1(x.bound);
  const double lost = x.value - x.bound < -127.0 * kLn2Double ? s : 0.0;
  return {s, s * (relative + (2.0 + x.magnitude()) * 0x1p-23 * (1.0 + relative)) + lost + 0x1p-148};
}

/// Sum in which no term passes through more than `depth` additions.
inline Bounded sum(const std::vector<Bounded>& terms, double depth) {
  double value = 0.0, bound = 0.0, magnitude = 0.0;
  for (const Bounded& term : terms) {
    value += term.value;
    bound += term.bound;
    magnitude += term.magnitude();
  }
  return {value, bound + magnitude * depth * kUnit / (1.0 - depth * kUnit)};
}
/// numerics::tree_sum of at most 4096 terms: 32 lanes, then five levels.
inline Bounded tree_sum(const std::vector<Bounded>& terms) {
  return sum(terms, std::ceil(static_cast<double>(terms.size()) / 32.0) + 5.0);
}

/// Largest |actual - value| / bound seen; a comparison passes when it is at most 1.
class Agreement {
 public:
  void add(double actual, const Bounded& expected) {
    const double error = std::fabs(actual - expected.value);
    const double ratio = error == 0.0 ? 0.0 : error / expected.bound;
    if (!std::isnan(worst_) && !(ratio <= worst_)) worst_ = ratio;  // a NaN sticks
  }
  double worst() const { return worst_; }

 private:
  double worst_ = 0.0;
};

}  // namespace fp8lab::test
