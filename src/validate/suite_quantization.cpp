// Checks of conversions, scales and quantizers.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "emulation/numerics/codec.hpp"
#include "src/validate/suite_checks.hpp"

namespace fp8lab {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;
using numerics::ScaleFormat;
using numerics::ScaleRule;

constexpr FormatSpec kElementFormats[] = {numerics::kE4M3, numerics::kE5M2, numerics::kE3M4,
                                          numerics::kE2M3, numerics::kE3M2, numerics::kE2M1};
constexpr FormatSpec kCastFormats[] = {numerics::kE4M3, numerics::kE5M2, numerics::kE3M4,
                                       numerics::kE2M3, numerics::kE3M2, numerics::kE2M1,
                                       numerics::kBF16, numerics::kFP16};
constexpr Rounding kRoundings[] = {Rounding::nearest, Rounding::toward_zero, Rounding::stochastic,
                                   Rounding::ties_down, Rounding::ties_positive};
constexpr std::int64_t kValuesPerKind = 160;
constexpr int kScaleRules = 15;
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

/// The 3 FP32 arithmetics, then 6 roundings each for pow2 and e8m0.
ScaleRule scale_rule(int index) {
  ScaleRule rule;
  if (index < 3) {
    rule.arithmetic = static_cast<numerics::ScaleArithmetic>(index);
    return rule;
  }
  rule.format = index < 9 ? ScaleFormat::pow2 : ScaleFormat::e8m0;
  rule.rounding = static_cast<numerics::ScaleRounding>((index - 3) % 6);
  return rule;
}

std::vector<float> amaxes(const FormatSpec& format, CaseGenerator& cases) {
  std::vector<float> list;
  for (const std::uint32_t bits : {0u, 1u, 2u, 0x400000u, 0x7FFFFFu, 0x800000u, 0x7F7FFFFFu,
                                   numerics::kF32Infinity, numerics::kF32NaN}) {
    list.push_back(bits_float(bits));
  }
  // The largest code, and powers of two, times powers of two; and their neighbours.
  for (const float anchor : {numerics::max_finite(format), 1.0f, 1.41421356f, 1.75f}) {
    for (int i = 0; i < 12; ++i) {
      const float power = bits_float((64u + cases.bits() % 110u) << 23);
      const std::uint32_t bits = float_bits(anchor * power);
      for (const std::uint32_t step : {0u, 1u, 2u}) list.push_back(bits_float(bits - 1u + step));
    }
  }
  for (int i = 0; i < 60; ++i) list.push_back(bits_float(cases.bits() % numerics::kF32Infinity));
  return list;
}

/// A quantization and the memory of its tensors.
struct QuantizeProblem {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;  ///< empty for an FP32 source
  std::int64_t rows = 0, cols = 0;
  bool transpose = false;
  RandomKey key;
  QuantSpec spec;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  TensorView source() {
    if (bf16.empty()) return {f32.data(), DType::f32, rows, cols, cols};
    return {bf16.data(), DType::bf16, rows, cols, cols};
  }

  void run(const Implementation& implementation) {
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = transpose ? cols : rows;
    operand.k = transpose ? rows : cols;
    codes.assign(static_cast<std::size_t>(rows * cols), 0xEE);
    operand.codes = {codes.data(), DType::u8, operand.rows, operand.k, operand.k};
    if (spec.has_scale()) {
      const std::int64_t high = spec.tile_rows(operand.rows), wide = spec.tile_cols(operand.k);
      scales.assign(static_cast<std::size_t>(high * wide), -1.0f);
      operand.scales = {scales.data(), DType::f32, high, wide, wide};
    }
    implementation.quantize(source(), transpose, key, operand);
  }

  std::string describe() const {
    return fmt::format("{} of a {} x {} {} matrix{}", label(spec), rows, cols,
                       bf16.empty() ? "f32" : "bf16", transpose ? ", transposed" : "");
  }
};

QuantSpec draw_spec(CaseGenerator& cases) {
  constexpr TileShape kTiles[] = {{0, 0}, {1, 0}, {1, 128}, {128, 128}, {1, 32}, {1, 16}, {3, 5}};
  QuantSpec spec;
  spec.format = kElementFormats[cases.bits() % std::size(kElementFormats)];
  spec.scale_source = cases.bits() % 8 == 0 ? ScaleSource::none : ScaleSource::current;
  if (spec.has_scale()) {
    spec.tile = kTiles[cases.bits() % std::size(kTiles)];
    spec.scale = scale_rule(static_cast<int>(cases.bits() % kScaleRules));
  }
  spec.rounding = kRoundings[cases.bits() % 4 % 3];  // nearest twice as often
  spec.overflow = cases.bits() % 2 == 0 ? Overflow::saturate : Overflow::special;
  return spec;
}

QuantizeProblem draw_quantization(CaseGenerator& cases) {
  QuantizeProblem problem;
  problem.spec = draw_spec(cases);
  problem.rows = 1 + cases.bits() % 40;
  problem.cols = 1 + cases.bits() % 300;
  problem.transpose = cases.bits() % 2 == 0;
  problem.key = {cases.bits(), cases.bits() % 1000, cases.bits() % 100,
                 problem.transpose ? 1u : 0u};
  const TileShape& tile = problem.spec.tile;
  const std::int64_t height = problem.transpose ? tile.cols : tile.rows;
  const std::int64_t width = problem.transpose ? tile.rows : tile.cols;
  problem.f32 = cases.matrix(problem.spec.format, problem.rows, problem.cols,
                             height == 0 ? problem.rows : height, width == 0 ? problem.cols : width,
                             cases.bits() % 4 == 0);
  if (cases.bits() % 2 == 0) {
    for (const float value : problem.f32) problem.bf16.push_back(numerics::to_bf16(value));
  }
  return problem;
}

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
  for (const FormatSpec& format : kCastFormats) {
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
        return fmt::format("{} of amax {:#010x} for {}, rule {}/{}/{}", part, float_bits(one.amax),
                           format_name(one.format), static_cast<int>(one.rule.format),
                           static_cast<int>(one.rule.rounding),
                           static_cast<int>(one.rule.arithmetic));
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
