#include "src/validate/export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/spec/estimator.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/validate/export_parts.hpp"
#include "src/validate/gemm_cases.hpp"
#include "src/validate/quantization_cases.hpp"
#include "src/validate/vector_pack.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using numerics::FormatSpec;

constexpr std::int64_t kExportedValuesPerKind = 160;
constexpr int kExportedQuantizations = 60;
constexpr int kExportedGemmsPerPair = 3;

// --- descriptions -------------------------------------------------------------------------------

ordered_json describe(const FormatSpec& format) {
  constexpr const char* kSpecials[] = {"none", "nan_only", "ieee", "unsigned_zero", "extended"};
  constexpr const char* kEncodings[] = {"floating", "twos_complement", "logarithmic",
                                        "tile_logarithm"};
  return {{"bits", format.bits()},
          {"encoding", kEncodings[static_cast<int>(format.encoding)]},
          {"exponent_bits", format.exponent_bits},
          {"mantissa_bits", format.mantissa_bits},
          {"bias", format.bias},
          {"specials", kSpecials[static_cast<int>(format.specials)]},
          {"has_sign", format.has_sign},
          {"has_subnormals", format.has_subnormals}};
}

ordered_json describe(const GemmSpec& spec) {
  return {{"accumulator", accumulator_name(spec.accumulator)},
          {"schedule", schedule_name(spec)},
          {"scale_order", word_for(kScaleOrderNames, spec.scale_order)},
          {"split_k", spec.split_k},
          {"output", word_for(kStorageNames, spec.output)}};
}

// --- codec --------------------------------------------------------------------------------------

/// Formats beside the named ones: those of 8 bits of IEEE P3109 with a mantissa, and float8_e3m4 of
/// ml_dtypes.
constexpr const char* kMoreFormats[] = {"binary8p2se", "binary8p3se", "binary8p4se", "binary8p5se",
                                        "binary8p6se", "binary8p7se", "e3m4ieee"};

std::vector<FormatSpec> more_formats() {
  std::vector<FormatSpec> formats;
  for (const char* name : kMoreFormats) formats.push_back(*format_by_name(name));
  return formats;
}

void export_decoding(VectorPack& pack) {
  std::vector<FormatSpec> formats = more_formats();
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    // A code of a codebook has no meaning without its tile.
    const bool has_values = named.format.encoding != numerics::Encoding::tile_logarithm;
    if (named.format.bits() <= 16 && has_values) formats.push_back(named.format);
  }
  for (const FormatSpec& format : formats) {
    std::vector<std::uint32_t> codes(std::size_t{1} << format.bits());
    std::vector<float> values;
    for (std::uint32_t code = 0; code < codes.size(); ++code) {
      codes[code] = code;
      values.push_back(numerics::decode(format, code));
    }
    const std::string format_word = format_name(format);
    const std::string name = fmt::format("decode/{}_", format_word);
    pack.section("decode").push_back(
        {{"format", format_word},
         {"codes", pack.add_codes(name + "codes", format, codes, 1)},
         {"values", pack.add_result(name + "values", DType::f32, values)}});
  }
}

/// Returns every code, every midpoint of neighbours with the next FP32 values on both
/// sides, the overflow limit, infinities, NaNs, zeros and subnormals, followed by
/// generated values of every kind.
std::vector<float> hard_values(const FormatSpec& format, CaseGenerator& cases) {
  std::vector<std::uint32_t> magnitudes = {0u,
                                           1u,
                                           0x400000u,
                                           0x7FFFFFu,
                                           0x800000u,
                                           numerics::kF32MaxFinite,
                                           numerics::kF32Infinity,
                                           numerics::kF32Infinity + 1u,
                                           0x7FC00000u,
                                           numerics::kF32NaN};
  if (format.bits() <= 8) {
    for (std::uint32_t code = 0; code <= format.max_finite_code(); ++code) {
      // Above the largest code the grid continues by one step: the limit of overflow.
      const float low = numerics::decode(format, code);
      const float below = code == 0 ? 0.0f : numerics::decode(format, code - 1);
      const float high = code < format.max_finite_code() ? numerics::decode(format, code + 1)
                                                         : low + (low - below);
      for (const float anchor : {low, low + (high - low) * 0.5f}) {
        const std::uint32_t bits = numerics::float_bits(anchor);
        for (const std::uint32_t beside : {bits == 0 ? 0u : bits - 1u, bits, bits + 1u}) {
          magnitudes.push_back(beside);
        }
      }
    }
  }
  std::vector<float> values;
  for (const std::uint32_t magnitude : magnitudes) {
    values.push_back(numerics::bits_float(magnitude));
    values.push_back(numerics::bits_float(magnitude | 0x80000000u));
  }
  for (int kind = 0; kind < kValueKinds; ++kind) {
    for (const float x :
         cases.values(format, static_cast<ValueKind>(kind), kExportedValuesPerKind)) {
      values.push_back(x);
    }
  }
  return values;
}

void export_encoding(VectorPack& pack, const Implementation& expected, CaseGenerator& cases) {
  std::vector<FormatSpec> formats = cast_formats();
  for (const FormatSpec& format : more_formats()) formats.push_back(format);
  for (const FormatSpec& format : formats) {
    const std::string format_word = format_name(format);
    const std::string folder = fmt::format("encode/{}_", format_word);
    const std::vector<float> values = hard_values(format, cases);
    std::vector<std::uint32_t> random(values.size());
    std::generate(random.begin(), random.end(), [&] { return cases.bits(); });
    const std::string x = pack.add(folder + "x", DType::f32, values);
    const std::string bits = pack.add(folder + "random_bits", DType::i32, random);
    for (const numerics::Rounding rounding : kRoundings) {
      for (const auto overflow : {numerics::Overflow::saturate, numerics::Overflow::special}) {
        std::vector<std::uint32_t> codes;
        for (std::size_t i = 0; i < values.size(); ++i) {
          codes.push_back(expected.cast(
              {format, numerics::float_bits(values[i]), rounding, overflow, random[i]}));
        }
        const std::string_view rounding_word = word_for(kRoundingNames, rounding);
        const std::string_view overflow_word = word_for(kOverflowNames, overflow);
        const std::string name = fmt::format("{}{}_{}", folder, rounding_word, overflow_word);
        pack.section("encode").push_back(
            {{"format", format_word},
             {"rounding", rounding_word},
             {"overflow", overflow_word},
             {"x", x},
             {"random_bits", bits},
             {"codes", pack.add_code_results(name, format, codes, 1)}});
      }
    }
  }
}

// --- scales and tiles ---------------------------------------------------------------------------

void export_scales(VectorPack& pack, const Implementation& expected, CaseGenerator& cases) {
  for (const FormatSpec& format : kElementFormats) {
    const std::vector<float> list = amaxes(format, cases);
    const std::string folder = fmt::format("scale/{}_", format_name(format));
    const std::string amax = pack.add(folder + "amax", DType::f32, list);
    for (int index = 0; index < 2 * kScaleRules; ++index) {
      numerics::ScaleRule rule = scale_rule(index % kScaleRules);
      if (index >= kScaleRules) {  // repeated with the two numbers of a rule
        rule.margin = 1 + index % 3;
        rule.amax_epsilon = 1e-4f;
      }
      std::vector<float> decode, multiplier;
      std::vector<std::uint8_t> divide;
      for (const float value : list) {
        const numerics::TileScale scale = expected.scale(rule, format, value);
        decode.push_back(scale.decode);
        multiplier.push_back(scale.multiplier);
        divide.push_back(scale.divide ? 1 : 0);
      }
      const std::string name = fmt::format("{}{}_", folder, index);
      pack.section("scale").push_back(
          {{"format", format_name(format)},
           {"rule", describe_rule(rule)},
           {"amax", amax},
           {"decode", pack.add_result(name + "decode", DType::f32, decode)},
           {"multiplier", pack.add_result(name + "multiplier", DType::f32, multiplier)},
           {"divide", pack.add_result(name + "divide", DType::u8, divide)}});
    }
  }
}

void export_quantizations(VectorPack& pack, const Implementation& expected, CaseGenerator& cases) {
  for (int index = 0; index < kExportedQuantizations; ++index) {
    QuantizeProblem problem = draw_quantization(cases);
    problem.run(expected);
    const QuantSpec& spec = problem.spec;
    const std::int64_t rows = problem.transpose ? problem.cols : problem.rows;
    const std::string name = fmt::format("quantize/{}_", index);
    ordered_json entry{{"spec", describe_quantizer(spec)}, {"transpose", problem.transpose}};
    entry["x"] = problem.bf16.empty()
                     ? pack.add(name + "x", DType::f32, problem.f32, problem.rows)
                     : pack.add(name + "x", DType::bf16, problem.bf16, problem.rows);
    if (spec.rounding == numerics::Rounding::stochastic) {
      const RandomKey& key = problem.key;
      std::vector<std::uint32_t> random(problem.f32.size());
      for (std::size_t i = 0; i < random.size(); ++i) {
        random[i] =
            numerics::random_bits(key.seed, key.step_number(), key.tensor, key.orientation, i);
      }
      entry["random_bits"] = pack.add(name + "random_bits", DType::i32, random, problem.rows);
    }
    entry["codes"] = pack.add_result(name + "codes", DType::u8, problem.codes, rows);
    if (spec.has_scale()) {
      entry["scales"] =
          pack.add_result(name + "scales", DType::f32, problem.scales, spec.tile_rows(rows));
    }
    pack.section("quantize").push_back(entry);
  }
}

// --- dot products and GEMMs ---------------------------------------------------------------------

/// Describes what a group keeps, and how it rounds.
ordered_json describe(const numerics::GroupModel& group) {
  ordered_json json{
      {"fraction_bits", group.fraction_bits},
      {"mantissa_bits", group.output_mantissa_bits},
      {"output_rounding", group.output == numerics::OutputKind::f16_nearest ||
                                  group.output_rounding != numerics::Alignment::truncate
                              ? "nearest"
                              : "toward_zero"}};
  if (group.min_exponent != numerics::kNoExponentFloor) {
    json["exponent_floor"] = group.min_exponent;
  }
  if (group.late_fraction_bits > 0) {
    json["late_fraction_bits"] = group.late_fraction_bits;
    json["partial_sums"] = group.partial_sums;
  }
  return json;
}

void export_dots(VectorPack& pack, std::span<const Instruction> instructions,
                 const Implementation& expected, CaseGenerator& cases) {
  for (const Instruction& instruction : instructions) {
    std::vector<std::uint32_t> a, b, c, d;
    const std::vector<ExpectedGroup> groups = draw_groups(instruction, expected, cases);
    for (const ExpectedGroup& one : groups) {
      a.insert(a.end(), one.a.begin(), one.a.end());
      b.insert(b.end(), one.b.begin(), one.b.end());
      c.push_back(one.c_bits);
      d.push_back(one.result);
    }
    const auto rows = static_cast<std::int64_t>(groups.size());
    const FormatSpec sum = numerics::accumulator_format(instruction.group.output);
    ordered_json& section = pack.section("dot");
    const std::string name = fmt::format("dot/{}_", section.size());
    ordered_json entry{{"instruction", instruction.name},
                       {"mma_sync_fp8", instruction.mma_sync_fp8},
                       {"products", static_cast<std::int64_t>(a.size()) / rows}};
    entry.update(describe(instruction.group));
    entry.update({{"format_a", format_name(instruction.format_a)},
                  {"format_b", format_name(instruction.format_b)},
                  {"format_c", format_name(sum)},
                  {"a", pack.add_codes(name + "a", instruction.format_a, a, rows)},
                  {"b", pack.add_codes(name + "b", instruction.format_b, b, rows)},
                  {"c", pack.add_codes(name + "c", sum, c, 1)},
                  {"d", pack.add_code_results(name + "d", sum, d, 1)}});
    section.push_back(entry);
  }
}

ordered_json add_operand(VectorPack& pack, const std::string& name, const SuiteOperand& operand) {
  ordered_json entry{{"spec", describe_quantizer(operand.spec)}};
  entry["codes"] = operand.bf16.empty() ? pack.add(name, DType::u8, operand.codes, operand.rows)
                                        : pack.add(name, DType::bf16, operand.bf16, operand.rows);
  if (operand.spec.has_scale()) {
    entry["scales"] = pack.add(name + "_scales", DType::f32, operand.scales,
                               operand.spec.tile_rows(operand.rows));
  }
  return entry;
}

void export_gemms(VectorPack& pack, const Implementation& expected, CaseGenerator& cases) {
  for (const OperandPair& pair : kPairs) {
    for (int i = 0; i < kExportedGemmsPerPair; ++i) {
      GemmProblem problem = draw_gemm(pair, cases);
      ordered_json& section = pack.section("gemm");
      const std::string name = fmt::format("gemm/{}_", section.size());
      ordered_json entry{{"spec", describe(problem.spec)},
                         {"a", add_operand(pack, name + "a", problem.a)},
                         {"b", add_operand(pack, name + "b", problem.b)}};
      const std::int64_t rows = problem.a.rows;
      if (!problem.bias.empty()) {
        entry["bias"] = pack.add(name + "bias", DType::f32, problem.bias);
      }
      if (problem.accumulate) {
        entry["accumulate"] = pack.add(name + "accumulate", DType::f32, problem.d, rows);
      }
      problem.run(expected);
      entry["d"] = problem.spec.output == DType::f32
                       ? pack.add_result(name + "d", DType::f32, problem.d, rows)
                       : pack.add_result(name + "d", DType::bf16, problem.d_bf16, rows);
      section.push_back(entry);
    }
  }
}

}  // namespace

ExportReport export_vectors(const Implementation& expected, const fs::path& directory,
                            std::uint64_t seed, const std::string& code_version) {
  VectorPack pack(directory);
  CaseGenerator cases(seed);
  export_decoding(pack);
  export_encoding(pack, expected, cases);
  export_scales(pack, expected, cases);
  export_quantizations(pack, expected, cases);
  export_dots(pack, kInstructions, expected, cases);
  export_gemms(pack, expected, cases);
  export_dots(pack, kOtherInstructions, expected, cases);
  export_conversions(pack, cases);
  export_mx_scales(pack);
  export_nvfp4(pack, cases);
  export_named_cases(pack, expected);
  ordered_json manifest{{"schema", kConformanceSchema},
                        {"version", code_version},
                        {"seed", seed},
                        {"hash", "sha256"}};
  manifest["conventions"] = {
      "Arrays are .npy, row-major, little-endian.",
      ("uint8: codes; uint16: codes, or the bits of bf16 and fp16; int32: unsigned random bits; "
       "e8m10 (tf32) as float32."),
      "A scale is the decode factor: x ~ scale * code. Tile RxC is over (rows, K).",
      ("With a scale_statistic std:C, C standard deviations of the tile stand for its amax; a "
       "scale_factor multiplies powers of two (emulation/specification.md, scales)."),
      "GEMM: d (M, N) = a (M, K) b (N, K)^T, scales, accumulate (M, N), then bias (N).",
      ("NaN results are 0x7FFFFFFF, 0x7FFF or the positive all-ones code; with the specials "
       "unsigned_zero the code of -0."),
      "Stochastic rounding adds the low bits of the random word below the kept bits.",
      ("stochastic_8 and stochastic_16 add the low 8 or 16 bits of the random word to the upper "
       "discarded bits, as cvt.rs of PTX for e2m1x4 (8) and the formats of 6 and 8 bits (16)."),
      "through: nearest to the named 16-bit format, then nearest to the target.",
      "toward_positive: e8m0 codes of magnitudes, rounded up; the sign is ignored.",
      "e8m0: the code of the scale of a tile with that amax; `kinds` names the columns.",
      ("nvfp4: x is a tensor (rows, K) in tiles 1x16; codes e2m1, scales e4m3 codes, tensor_scale "
       "the FP32 decode factor: x ~ tensor_scale * scale * code."),
      "A `case` is a mistake of a library that `threads` reports; `about` says what it was."};
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    manifest["formats"][std::string(named.name)] = describe(named.format);
  }
  for (const FormatSpec& format : more_formats()) {
    manifest["formats"][format_name(format)] = describe(format);
  }
  return pack.finish(std::move(manifest));
}

}  // namespace fp8lab
