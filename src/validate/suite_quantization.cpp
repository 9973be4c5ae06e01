// Checks of conversions, scales and quantizers.
#include <fmt/format.h>

#include <memory>

#include "emulation/numerics/codec.hpp"
#include "src/validate/quantization_cases.hpp"
#include "src/validate/suite_checks.hpp"

namespace fp8lab {
namespace {

using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;
using numerics::ScaleRule;

constexpr std::int64_t kValuesPerKind = 160;
constexpr int kQuantizations = 120;

const char* name_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest: return "nearest";
    case Rounding::toward_zero: return "toward zero";
    case Rounding::stochastic: return "stochastic";
    case Rounding::ties_down: return "nearest, ties down";
    case Rounding::ties_positive: return "nearest, ties to positive";
  }
  return "?";
}

struct ExpectedCast {
  CastProblem problem;
  std::uint32_t code = 0;
};

struct ExpectedScale {
  ScaleRule rule;
  FormatSpec format;
  float amax = 0.0f;
  numerics::TileScale scale;
};

bool compare(const QuantizeProblem& expected, const QuantizeProblem& actual, CheckTally& tally) {
  const std::int64_t k = expected.transpose ? expected.rows : expected.cols;
  for (std::size_t i = 0; i < expected.scales.size(); ++i) {
    const bool goes_on =
        tally.check(float_bits(expected.scales[i]), float_bits(actual.scales[i]),
                    [&] { return fmt::format("{}, scale {}", expected.describe(), i); });
    if (!goes_on) return false;
  }
  for (std::size_t i = 0; i < expected.codes.size(); ++i) {
    const auto element = static_cast<std::int64_t>(i);
    const bool goes_on = tally.check(expected.codes[i], actual.codes[i], [&] {
      return fmt::format("{}, code ({}, {})", expected.describe(), element / k, element % k);
    });
    if (!goes_on) return false;
  }
  return true;
}

}  // namespace

SuiteCheck cast_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedCast>>();
  for (const FormatSpec& format : cast_formats()) {
    for (const Rounding rounding : kRoundings) {
      for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
        for (int kind = 0; kind < kValueKinds; ++kind) {
          for (const float x : cases.values(format, static_cast<ValueKind>(kind), kValuesPerKind)) {
            const CastProblem problem{format, float_bits(x), rounding, overflow, cases.bits()};
            list->push_back({problem, expected.cast(problem)});
          }
        }
      }
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedCast& one : *list) {
      const CastProblem& p = one.problem;
      const bool goes_on = tally.check(one.code, tested.cast(p), [&] {
        return fmt::format("{:#010x} to {}, {}, {}", p.f32_bits, format_name(p.format),
                           name_of(p.rounding),
                           p.overflow == Overflow::saturate ? "saturating" : "not saturating");
      });
      if (!goes_on) return;
    }
  };
  return {"cast", [](const Implementation& tested) { return bool(tested.cast); }, run};
}

SuiteCheck scale_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedScale>>();
  for (const FormatSpec& format : kElementFormats) {
    for (int index = 0; index < kScaleRules; ++index) {
      ScaleRule rule = scale_rule(index);
      if (cases.bits() % 4 == 0) rule.margin = static_cast<int>(cases.bits() % 5u) - 2;
      if (cases.bits() % 4 == 0) rule.amax_epsilon = 1e-4f;
      for (const float amax : amaxes(format, cases)) {
        list->push_back({rule, format, amax, expected.scale(rule, format, amax)});
      }
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedScale& one : *list) {
      const numerics::TileScale actual = tested.scale(one.rule, one.format, one.amax);
      const auto where = [&](const char* part) {
        return fmt::format("{} of amax {:#010x} for {}, rule {}/{}/{}/{}", part,
                           float_bits(one.amax), format_name(one.format),
                           static_cast<int>(one.rule.format), static_cast<int>(one.rule.rounding),
                           static_cast<int>(one.rule.arithmetic), one.rule.factor);
      };
      const bool goes_on =
          tally.check(float_bits(one.scale.decode), float_bits(actual.decode),
                      [&] { return where("decode scale"); }) &&
          tally.check(float_bits(one.scale.multiplier), float_bits(actual.multiplier),
                      [&] { return where("multiplier"); }) &&
          tally.check(one.scale.divide, actual.divide, [&] { return where("choice of division"); });
      if (!goes_on) return;
    }
  };
  return {"scale", [](const Implementation& tested) { return bool(tested.scale); }, run};
}

SuiteCheck quantize_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<QuantizeProblem>>();
  for (int i = 0; i < kQuantizations; ++i) {
    list->push_back(draw_quantization(cases));
    list->back().run(expected);
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const QuantizeProblem& problem : *list) {
      QuantizeProblem actual = problem;
      actual.run(tested);
      if (!compare(problem, actual, tally)) return;
    }
  };
  return {"quantize", [](const Implementation& tested) { return bool(tested.quantize); }, run};
}

}  // namespace fp8lab
