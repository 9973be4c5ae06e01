// Sections of the conformance pack for conversions with an intermediate step, and for MX and NVFP4.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/few_random_bits.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/spec/estimator.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/validate/export_parts.hpp"
#include "src/validate/quantization_cases.hpp"

namespace fp8lab {

using nlohmann::ordered_json;
using numerics::bits_float;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;

ordered_json describe_rule(const numerics::ScaleRule& rule) {
  return {{"scale_format", word_for(kScaleFormatNames, rule.format)},
          {"scale_rounding", word_for(kScaleRoundingNames, rule.rounding)},
          {"scale_arithmetic", word_for(kScaleArithmeticNames, rule.arithmetic)},
          {"amax_epsilon", rule.amax_epsilon},
          {"margin", rule.margin},
          {"scale_statistic", statistic_name(rule.deviations)},
          {"scale_factor", rule.factor}};
}

ordered_json describe_quantizer(const QuantSpec& spec) {
  ordered_json json{{"format", format_name(spec.format)},
                    {"tile", tile_name(spec.tile)},
                    {"scale_source", word_for(kScaleSourceNames, spec.scale_source)},
                    {"rounding", word_for(kRoundingNames, spec.rounding)},
                    {"overflow", word_for(kOverflowNames, spec.overflow)}};
  json.update(describe_rule(spec.scale));
  return json;
}

namespace {

constexpr std::int64_t kConvertedValues = 400;

/// Returns values around the codes and midpoints of a format, and a few of every other kind.
std::vector<float> converted_values(const FormatSpec& format, CaseGenerator& cases) {
  std::vector<float> values = {0.0f, -0.0f};
  for (const std::uint32_t bits : {numerics::kF32Infinity, numerics::kF32NaN, 1u, 0x7F7FFFFFu}) {
    values.push_back(bits_float(bits));
  }
  for (const ValueKind kind : {ValueKind::near_midpoint, ValueKind::near_code, ValueKind::gaussian,
                               ValueKind::subnormal, ValueKind::near_max}) {
    const std::vector<float> drawn = cases.values(format, kind, kConvertedValues);
    values.insert(values.end(), drawn.begin(), drawn.end());
  }
  return values;
}

void export_through(VectorPack& pack, const FormatSpec& format, CaseGenerator& cases) {
  const std::vector<float> values = converted_values(format, cases);
  const std::string folder = fmt::format("through/{}_", format_name(format));
  const std::string x = pack.add(folder + "x", DType::f32, values);
  for (const FormatSpec& between : {numerics::kFP16, numerics::kBF16}) {
    for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
      std::vector<std::uint32_t> codes;
      for (const float value : values) {
        codes.push_back(encode_through(format, between, value, overflow));
      }
      const std::string through = format_name(between);
      const std::string_view word = word_for(kOverflowNames, overflow);
      pack.section("through").push_back(
          {{"format", format_name(format)},
           {"through", through},
           {"overflow", word},
           {"x", x},
           {"codes", pack.add_code_results(fmt::format("{}{}_{}", folder, through, word), format,
                                           codes, 1)}});
    }
  }
}

void export_few_random_bits(VectorPack& pack, const FormatSpec& format, CaseGenerator& cases) {
  const std::vector<float> values = converted_values(format, cases);
  std::vector<std::uint32_t> random(values.size());
  std::generate(random.begin(), random.end(), [&] { return cases.bits(); });
  const std::string folder = fmt::format("encode/{}_few_", format_name(format));
  const std::string x = pack.add(folder + "x", DType::f32, values);
  const std::string bits = pack.add(folder + "random_bits", DType::i32, random);
  for (const int count : {8, 16}) {
    std::vector<std::uint32_t> codes;
    for (std::size_t i = 0; i < values.size(); ++i) {
      codes.push_back(
          numerics::encode_few_random_bits(format, float_bits(values[i]), random[i], count));
    }
    pack.section("encode").push_back(
        {{"format", format_name(format)},
         {"rounding", fmt::format("stochastic_{}", count)},
         {"overflow", "saturate"},
         {"x", x},
         {"random_bits", bits},
         {"codes", pack.add_code_results(fmt::format("{}{}", folder, count), format, codes, 1)}});
  }
}

void export_e8m0_casts(VectorPack& pack, CaseGenerator& cases) {
  std::vector<float> values;
  for (const float value : converted_values(numerics::kBF16, cases)) {
    values.push_back(bits_float(float_bits(value) & 0x7FFFFFFFu));
  }
  for (std::uint32_t field = 0; field < 255; ++field) {
    for (const std::uint32_t mantissa : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x7FFFFFu}) {
      values.push_back(bits_float(field << 23 | mantissa));
    }
  }
  const std::string x = pack.add("encode/e8m0_x", DType::f32, values);
  for (const char* rounding : {"toward_zero", "toward_positive"}) {
    for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
      std::vector<std::uint32_t> codes;
      for (const float value : values) {
        codes.push_back(numerics::encode_e8m0(
            float_bits(value), std::string_view(rounding) == "toward_positive", overflow));
      }
      const std::string_view word = word_for(kOverflowNames, overflow);
      pack.section("encode").push_back(
          {{"format", "e8m0"},
           {"rounding", rounding},
           {"overflow", word},
           {"x", x},
           {"codes", pack.add_code_results(fmt::format("encode/e8m0_{}_{}", rounding, word),
                                           numerics::kE8M0, codes, 1)}});
    }
  }
}

/// Amaxes and what each of them is.
std::vector<std::pair<std::string, float>> amax_kinds(const FormatSpec& format) {
  std::vector<std::pair<std::string, float>> kinds = {
      {"zero", 0.0f},
      {"NaN", bits_float(numerics::kF32NaN)},
      {"infinity", bits_float(numerics::kF32Infinity)},
      {"the smallest subnormal", bits_float(1u)},
      {"a subnormal power of two", bits_float(0x400000u)},
      {"the largest subnormal", bits_float(0x7FFFFFu)},
      {"the smallest normal number", bits_float(0x800000u)},
      {"the largest finite number", bits_float(numerics::kF32MaxFinite)}};
  const std::pair<const char*, float> anchors[] = {{"a power of two", 1.0f},
                                                   {"Qmax times a power", max_finite(format)}};
  for (const auto& [name, anchor] : anchors) {
    for (const int exponent : {-60, -20, -1, 0, 1, 20, 60}) {
      const std::uint32_t bits = float_bits(anchor * numerics::power_of_two(exponent));
      kinds.emplace_back(fmt::format("{} (2^{})", name, exponent), bits_float(bits));
      kinds.emplace_back(fmt::format("one above {} (2^{})", name, exponent), bits_float(bits + 1u));
      kinds.emplace_back(fmt::format("one below {} (2^{})", name, exponent), bits_float(bits - 1u));
    }
  }
  return kinds;
}

constexpr std::int64_t kTensorRows = 12, kTensorColumns = 96, kNvTile = 16;

/// Returns a tensor whose tiles have magnitudes of 2^-11 to 1 times that of the tensor, with a tile
/// of zeros.
std::vector<float> ordinary_tensor(CaseGenerator& cases, int index) {
  std::vector<float> x =
      cases.values(numerics::kE2M1, ValueKind::gaussian, kTensorRows * kTensorColumns);
  const float size = numerics::power_of_two(10 * index - 20);
  for (std::size_t tile = 0; tile < x.size(); tile += kNvTile) {
    const float factor = numerics::power_of_two(-static_cast<int>(cases.bits() % 12));
    for (std::size_t i = 0; i < kNvTile; ++i) {
      x[tile + i] = tile == 5 * kNvTile ? 0.0f : x[tile + i] * factor * size;
    }
  }
  return x;
}

}  // namespace

std::uint32_t encode_through(const FormatSpec& format, const FormatSpec& between, float value,
                             Overflow overflow) {
  const std::uint32_t first =
      numerics::encode(between, float_bits(value), numerics::Rounding::nearest, Overflow::special);
  return numerics::encode(format, numerics::decode_bits(between, first),
                          numerics::Rounding::nearest, overflow);
}

std::uint32_t e8m0_scale_code(const FormatSpec& format, numerics::ScaleRounding rounding,
                              float amax) {
  numerics::ScaleRule rule;
  rule.format = numerics::ScaleFormat::e8m0;
  rule.rounding = rounding;
  const float decode = numerics::tile_scale(rule, format, amax).decode;
  return numerics::encode_e8m0(float_bits(decode), false, Overflow::special);
}

void export_conversions(VectorPack& pack, CaseGenerator& cases) {
  for (const FormatSpec& format : {numerics::kE4M3, numerics::kE5M2, numerics::kE4M3Fnuz,
                                   numerics::kE5M2Fnuz, numerics::kE2M1}) {
    export_through(pack, format, cases);
  }
  for (const FormatSpec& format :
       {numerics::kE4M3, numerics::kE5M2, numerics::kE2M3, numerics::kE3M2, numerics::kE2M1}) {
    export_few_random_bits(pack, format, cases);
  }
  export_e8m0_casts(pack, cases);
}

void export_mx_scales(VectorPack& pack) {
  for (const FormatSpec& format :
       {numerics::kE4M3, numerics::kE5M2, numerics::kE2M3, numerics::kE3M2, numerics::kE2M1}) {
    std::vector<float> amaxes;
    ordered_json kinds = ordered_json::array();
    for (const auto& [kind, amax] : amax_kinds(format)) {
      kinds.push_back(kind);
      amaxes.push_back(amax);
    }
    const std::string folder = fmt::format("e8m0/{}_", format_name(format));
    const std::string amax = pack.add(folder + "amax", DType::f32, amaxes);
    for (const auto& [word, rounding] : kScaleRoundingNames) {
      std::vector<std::uint32_t> codes;
      for (const float value : amaxes) codes.push_back(e8m0_scale_code(format, rounding, value));
      pack.section("e8m0").push_back(
          {{"format", format_name(format)},
           {"scale_rounding", word},
           {"kinds", kinds},
           {"amax", amax},
           {"codes",
            pack.add_code_results(fmt::format("{}{}", folder, word), numerics::kE8M0, codes, 1)}});
    }
  }
}

void export_nvfp4(VectorPack& pack, CaseGenerator& cases) {
  constexpr int kTensors = 8;
  const FormatSpec element = numerics::kE2M1;
  for (int index = 0; index < kTensors; ++index) {
    const std::vector<float> x =
        index < kTensors - 2
            ? ordinary_tensor(cases, index)
            : cases.matrix(element, kTensorRows, kTensorColumns, 1, kNvTile, index == kTensors - 1);
    std::uint32_t tensor_amax = 0;
    for (const float value : x) {
      tensor_amax = std::max(tensor_amax, float_bits(value) & 0x7FFFFFFFu);
    }
    const numerics::ScaleRule rule;
    const float factor = numerics::nv_tensor_factor(rule, element, bits_float(tensor_amax));
    std::vector<std::uint32_t> codes, scales;
    for (std::size_t tile = 0; tile < x.size(); tile += kNvTile) {
      std::uint32_t amax = 0;
      for (std::size_t i = 0; i < kNvTile; ++i) {
        amax = std::max(amax, float_bits(x[tile + i]) & 0x7FFFFFFFu);
      }
      const float ratio = bits_float(amax) * (factor * (1.0f / numerics::max_finite(element)));
      scales.push_back(numerics::encode(numerics::kE4M3, float_bits(ratio)));
      const numerics::TileScale scale = numerics::nv_tile_scale(element, factor, bits_float(amax));
      for (std::size_t i = 0; i < kNvTile; ++i) {
        const float scaled = numerics::scaled_value(scale, x[tile + i]);
        codes.push_back(numerics::encode(element, float_bits(scaled)));
      }
    }
    const std::string name = fmt::format("nvfp4/{}_", index);
    pack.section("nvfp4").push_back(
        {{"x", pack.add(name + "x", DType::f32, x, kTensorRows)},
         {"codes", pack.add_code_results(name + "codes", element, codes, kTensorRows)},
         {"scales", pack.add_code_results(name + "scales", numerics::kE4M3, scales, kTensorRows)},
         {"tensor_scale",
          pack.add_result(name + "tensor_scale", DType::f32, std::vector<float>{1.0f / factor})}});
  }
}

}  // namespace fp8lab
