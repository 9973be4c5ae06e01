// The factors of gradient estimators.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/numerics/estimator.hpp"

using namespace fp8lab::numerics;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Estimator dge(float steepness, float cap) { return {EstimatorKind::dge, steepness, cap}; }

/// All magnitudes of a format, ascending.
std::vector<double> numbers_of(FormatSpec format) {
  std::vector<double> numbers;
  for (std::uint32_t code = 0; code <= format.max_finite_code(); ++code) {
    numbers.push_back(decode(format, code));
  }
  return numbers;
}

/// The paper's formula in FP64, by a search of the interval.
double expected(const std::vector<double>& numbers, double k, double cap, double x) {
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    if (x >= numbers[i + 1]) continue;
    const double place = 2.0 * (x - numbers[i]) / (numbers[i + 1] - numbers[i]) - 1.0;
    return std::min(std::pow(std::abs(place), 1.0 / k - 1.0) / k, cap);
  }
  return std::min(1.0 / k, cap);
}

TEST_CASE("a clip mask is the inside of the range") {
  const Estimator mask{EstimatorKind::clip_mask};
  CHECK(estimator_factor(mask, kE2M1, 5.9999995f) == 1.0f);
  CHECK(estimator_factor(mask, kE2M1, -5.9999995f) == 1.0f);
  CHECK(estimator_factor(mask, kE2M1, 0.0f) == 1.0f);
  for (const float x : {6.0f, -6.0f, 7.0f, kInfinity, -kInfinity, std::nanf("")}) {
    CHECK(estimator_factor(mask, kE2M1, x) == 0.0f);
  }
  CHECK(estimator_factor(mask, kE4M3, 447.0f) == 1.0f);
  CHECK(estimator_factor(mask, kE4M3, 448.0f) == 0.0f);
  CHECK(estimator_factor({}, kE2M1, 100.0f) == 1.0f);
}

TEST_CASE("DGE is the derivative of its curve between every two codes") {
  for (const FormatSpec format : {kE2M1, kE4M3, kE5M2, kE3M2, kInt8, kMxInt8, kLns8}) {
    const std::vector<double> numbers = numbers_of(format);
    const double largest = numbers.back();
    for (const double k : {1.0, 2.0, 5.0, 10.0}) {
      const double cap = k == 2.0 ? 1.25 : 3.0;
      for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
        for (const double part : {0.0, 0.01, 0.25, 0.49, 0.5, 0.75, 0.999}) {
          const double x = numbers[i] + part * (numbers[i + 1] - numbers[i]);
          const auto scaled = static_cast<float>(x);
          const double wanted = expected(numbers, k, cap, scaled);
          const Estimator estimator = dge(static_cast<float>(k), static_cast<float>(cap));
          REQUIRE(estimator_factor(estimator, format, scaled) == Approx(wanted).epsilon(2e-5));
          REQUIRE(estimator_factor(estimator, format, -scaled) ==
                  estimator_factor(estimator, format, scaled));
        }
      }
      // At the largest number and beyond, as at a code.
      for (const double x : {largest, 1.5 * largest, static_cast<double>(kInfinity)}) {
        CHECK(estimator_factor(dge(static_cast<float>(k), 3.0f), format, static_cast<float>(x)) ==
              Approx(1.0 / k));
      }
    }
  }
}

TEST_CASE("DGE is capped in the middle of a step, and straight for k = 1") {
  CHECK(estimator_factor(dge(5.0f, 3.0f), kE2M1, 0.25f) == 3.0f);
  CHECK(estimator_factor(dge(5.0f, 3.0f), kE2M1, 2.5f) == 3.0f);
  CHECK(estimator_factor(dge(5.0f, 3.0f), kE2M1, 2.0f) == 0.2f);
  CHECK(estimator_factor(dge(5.0f, 0.1f), kE2M1, 2.0f) == 0.1f);
  for (const float x : {0.0f, 0.25f, 0.3f, 5.0f, 6.0f, 9.0f, kInfinity}) {
    CHECK(estimator_factor(dge(1.0f, 3.0f), kE2M1, x) == 1.0f);
  }
  CHECK(estimator_factor(dge(5.0f, 3.0f), kE2M1, std::nanf("")) == 0.2f);
  // The mean over an interval is its rise, 1, but for what a high cap takes away.
  double sum = 0.0;
  constexpr int kSteps = 200000;
  for (int i = 0; i < kSteps; ++i) {
    const double x = 4.0 + 2.0 * (i + 0.5) / kSteps;
    sum += estimator_factor(dge(2.0f, 1000.0f), kE2M1, static_cast<float>(x));
  }
  CHECK(sum / kSteps == Approx(1.0).epsilon(2e-3));
}

}  // namespace
