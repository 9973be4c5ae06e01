#include "src/validate/quantization_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/tile_deviation.hpp"

namespace fp8lab {

using numerics::bits_float;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::ScaleFormat;
using numerics::ScaleRule;

std::vector<FormatSpec> cast_formats() {
  std::vector<FormatSpec> formats;
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const FormatSpec& format = named.format;
    const bool cast = format.has_sign && format.encoding == numerics::Encoding::floating;
    if (cast && format.bits() <= 16) formats.push_back(format);
  }
  return formats;
}

ScaleRule scale_rule(int index) {
  ScaleRule rule;
  if (index < 3) {
    rule.arithmetic = static_cast<numerics::ScaleArithmetic>(index);
    return rule;
  }
  // 4/3 together with ocp_floor, as in Quartet.
  constexpr float kFactors[] = {1.1f, 1.9f, 0.75f, 1.3333334f, 1.5f, 0.6f, 2.0f};
  constexpr int kRules = static_cast<int>(std::size(kFactors));
  const int rounding = (index - 3) % kRules, kind = (index - 3) / kRules;
  rule.format = kind == 1 ? ScaleFormat::e8m0 : ScaleFormat::pow2;
  rule.rounding = static_cast<numerics::ScaleRounding>(rounding);
  if (kind == 2) rule.factor = kFactors[rounding];
  return rule;
}

std::vector<float> amaxes(const FormatSpec& format, CaseGenerator& cases) {
  std::vector<float> list;
  for (const std::uint32_t bits : {0u, 1u, 2u, 0x400000u, 0x7FFFFFu, 0x800000u, 0x7F7FFFFFu,
                                   numerics::kF32Infinity, numerics::kF32NaN}) {
    list.push_back(bits_float(bits));
  }
  // The largest code and powers of two, times powers of two, and their neighbours.
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

namespace {

QuantSpec draw_spec(CaseGenerator& cases) {
  constexpr TileShape kTiles[] = {{0, 0},  {1, 0},  {1, 128}, {128, 128},
                                  {1, 32}, {1, 16}, {3, 5},   {32, 32}};
  constexpr float kDeviations[] = {2.92247856f, 3.0f, 0.7f, 40.0f};
  QuantSpec spec;
  spec.format = kElementFormats[cases.bits() % std::size(kElementFormats)];
  spec.scale_source = cases.bits() % 8 == 0 ? ScaleSource::none : ScaleSource::current;
  if (spec.has_scale()) {
    spec.tile = kTiles[cases.bits() % std::size(kTiles)];
    spec.scale = scale_rule(static_cast<int>(cases.bits() % kScaleRules));
    const bool is_bounded = spec.tile.rows > 0 && spec.tile.cols > 0;
    if (is_bounded && spec.tile.rows * spec.tile.cols <= numerics::kLargestDeviationTile &&
        cases.bits() % 2 == 0) {
      spec.scale.deviations = kDeviations[cases.bits() % std::size(kDeviations)];
    }
  }
  spec.rounding = kRoundings[cases.bits() % 4 % 3];  // nearest has twice the probability
  spec.overflow = cases.bits() % 2 == 0 ? Overflow::saturate : Overflow::special;
  return spec;
}

}  // namespace

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
  if (problem.spec.scale.deviations > 0.0f) {  // the first tile: constant, zero deviation
    for (std::int64_t r = 0; r < std::min(height, problem.rows); ++r) {
      const auto row = problem.f32.begin() + r * problem.cols;
      std::fill_n(row, std::min(width, problem.cols), problem.f32.front());
    }
  }
  if (cases.bits() % 2 == 0) {
    for (const float value : problem.f32) problem.bf16.push_back(numerics::to_bf16(value));
  }
  return problem;
}

TensorView QuantizeProblem::source() {
  if (bf16.empty()) return {f32.data(), DType::f32, rows, cols, cols};
  return {bf16.data(), DType::bf16, rows, cols, cols};
}

void QuantizeProblem::run(const Implementation& implementation) {
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

std::string QuantizeProblem::describe() const {
  return fmt::format("{} of a {} x {} {} matrix{}", label(spec), rows, cols,
                     bf16.empty() ? "f32" : "bf16", transpose ? ", transposed" : "");
}

}  // namespace fp8lab
