// Known mistakes of libraries as small cases of the conformance pack. A case has the few inputs
// that show its mistake, and the results of a conversion without it.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/validate/export_parts.hpp"

namespace fp8lab {

using nlohmann::ordered_json;
using numerics::bits_float;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;
using numerics::ScaleRounding;

namespace {

/// The name of a mistake, the public threads that report it, and what it was.
struct KnownMistake {
  const char* name;
  const char* threads;
  const char* about;
};

/// Writes the inputs and results of one entry below cases/.
class CaseWriter {
 public:
  explicit CaseWriter(VectorPack& pack) : pack_(&pack) {}

  void decode(const KnownMistake& mistake, const char* format,
              const std::vector<std::uint32_t>& codes) {
    const FormatSpec spec = *format_by_name(format);
    std::vector<float> values;
    for (const std::uint32_t code : codes) values.push_back(numerics::decode(spec, code));
    const std::string name = next(mistake);
    add("decode", mistake,
        {{"format", format},
         {"codes", pack_->add_codes(name + "codes", spec, codes, 1)},
         {"values", pack_->add_result(name + "values", DType::f32, values)}});
  }

  void encode(const KnownMistake& mistake, const char* format, Overflow overflow,
              const std::vector<float>& values) {
    const FormatSpec spec = *format_by_name(format);
    std::vector<std::uint32_t> codes;
    for (const float x : values) {
      codes.push_back(numerics::encode(spec, float_bits(x), Rounding::nearest, overflow));
    }
    add_codes("encode", mistake, values, codes, spec,
              {{"format", format},
               {"rounding", "nearest"},
               {"overflow", word_for(kOverflowNames, overflow)}});
  }

  void encode_e8m0_up(const KnownMistake& mistake, const std::vector<float>& values) {
    std::vector<std::uint32_t> codes;
    for (const float x : values) {
      codes.push_back(numerics::encode_e8m0(float_bits(x), true, Overflow::saturate));
    }
    add_codes("encode", mistake, values, codes, numerics::kE8M0,
              {{"format", "e8m0"}, {"rounding", "toward_positive"}, {"overflow", "saturate"}});
  }

  void through(const KnownMistake& mistake, const char* format, const char* between,
               const std::vector<float>& values) {
    const FormatSpec spec = *format_by_name(format);
    std::vector<std::uint32_t> codes;
    for (const float x : values) {
      codes.push_back(encode_through(spec, *format_by_name(between), x, Overflow::saturate));
    }
    add_codes("through", mistake, values, codes, spec,
              {{"format", format}, {"through", between}, {"overflow", "saturate"}});
  }

  void e8m0(const KnownMistake& mistake, const char* format, ScaleRounding rounding,
            const std::vector<float>& amaxes) {
    const FormatSpec spec = *format_by_name(format);
    std::vector<std::uint32_t> codes;
    for (const float amax : amaxes) codes.push_back(e8m0_scale_code(spec, rounding, amax));
    const std::string name = next(mistake);
    add("e8m0", mistake,
        {{"format", format},
         {"scale_rounding", word_for(kScaleRoundingNames, rounding)},
         {"amax", pack_->add(name + "amax", DType::f32, amaxes)},
         {"codes", pack_->add_code_results(name + "codes", numerics::kE8M0, codes, 1)}});
  }

  void quantize(const KnownMistake& mistake, const Implementation& expected, const QuantSpec& spec,
                std::vector<float> x, std::int64_t rows, bool transpose) {
    const auto cols = static_cast<std::int64_t>(x.size()) / rows;
    const std::int64_t high = transpose ? cols : rows, wide = transpose ? rows : cols;
    std::vector<std::uint8_t> codes(x.size());
    std::vector<float> scales(
        static_cast<std::size_t>(spec.tile_rows(high) * spec.tile_cols(wide)));
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = high;
    operand.k = wide;
    operand.codes = {codes.data(), DType::u8, high, wide, wide};
    operand.scales = {scales.data(), DType::f32, spec.tile_rows(high), spec.tile_cols(wide),
                      spec.tile_cols(wide)};
    expected.quantize({x.data(), DType::f32, rows, cols, cols}, transpose, {}, operand);
    const std::string name = next(mistake);
    add("quantize", mistake,
        {{"spec", describe_quantizer(spec)},
         {"transpose", transpose},
         {"x", pack_->add(name + "x", DType::f32, x, rows)},
         {"codes", pack_->add_result(name + "codes", DType::u8, codes, high)},
         {"scales", pack_->add_result(name + "scales", DType::f32, scales, spec.tile_rows(high))}});
  }

 private:
  std::string next(const KnownMistake& mistake) {
    return fmt::format("cases/{}_{}_", mistake.name, count_++);
  }

  void add_codes(const char* section, const KnownMistake& mistake, const std::vector<float>& x,
                 const std::vector<std::uint32_t>& codes, const FormatSpec& format,
                 ordered_json entry) {
    const std::string name = next(mistake);
    entry["x"] = pack_->add(name + "x", DType::f32, x);
    entry["codes"] = pack_->add_code_results(name + "codes", format, codes, 1);
    add(section, mistake, std::move(entry));
  }

  void add(const char* section, const KnownMistake& mistake, ordered_json entry) {
    entry["case"] = mistake.name;
    entry["threads"] = mistake.threads;
    entry["about"] = mistake.about;
    pack_->section(section).push_back(std::move(entry));
  }

  VectorPack* pack_;
  int count_ = 0;
};

/// Returns the FP32 neighbours of the midpoints between codes of `format` that a first rounding to
/// `between` moves to another code.
std::vector<float> twice_rounded(const FormatSpec& format, const FormatSpec& between) {
  std::vector<float> found;
  for (std::uint32_t code = 0; code < format.max_finite_code(); ++code) {
    const float low = numerics::decode(format, code), high = numerics::decode(format, code + 1);
    const std::uint32_t middle = float_bits(low + (high - low) * 0.5f);
    for (const std::uint32_t bits : {middle - 1u, middle + 1u}) {
      const float x = bits_float(bits);
      if (numerics::encode(format, bits) ==
          encode_through(format, between, x, Overflow::saturate)) {
        continue;
      }
      found.push_back(x);
      found.push_back(-x);
    }
  }
  FP8LAB_ASSERT(!found.empty());
  return found;
}

/// Returns anchor * 2^k for k from -60 to 60 in steps of 4, moved by `units` FP32 numbers.
std::vector<float> at_powers(float anchor, std::uint32_t units) {
  std::vector<float> values;
  for (int exponent = -60; exponent <= 60; exponent += 4) {
    values.push_back(bits_float(float_bits(anchor * numerics::power_of_two(exponent)) + units));
  }
  return values;
}

void casts(CaseWriter& writer) {
  writer.encode({"fp16_intermediate_e4m3fn", "triton#11753",
                 "FP32 was converted to FP8 by way of FP16: two roundings"},
                "e4m3fn", Overflow::saturate, twice_rounded(numerics::kE4M3, numerics::kFP16));
  writer.encode({"fp16_intermediate_e5m2", "oneDNN#2361",
                 "FP32 is converted to FP8 by way of FP16, as documented: two roundings"},
                "e5m2", Overflow::saturate, twice_rounded(numerics::kE5M2, numerics::kFP16));
  writer.through({"fp16_intermediate_wanted", "openvino#28501",
                  "the conversion by way of FP16 is intended there; one rounding differs from it"},
                 "e4m3fn", "fp16", twice_rounded(numerics::kE4M3, numerics::kFP16));
  writer.encode(
      {"bf16_intermediate", "ao#4725", "values were rounded to BF16 before the conversion to FP8"},
      "e4m3fn", Overflow::saturate, twice_rounded(numerics::kE4M3, numerics::kBF16));
  std::vector<float> upper;  // three quarters of a step above each code
  for (std::uint32_t code = 0; code < numerics::kE4M3.max_finite_code(); ++code) {
    const float low = numerics::decode(numerics::kE4M3, code);
    const float step = numerics::decode(numerics::kE4M3, code + 1) - low;
    upper.push_back(low + 0.75f * step);
    upper.push_back(-low - 0.75f * step);
  }
  writer.encode({"truncated", "bitstring#342", "the discarded bits were cut off"}, "e4m3fn",
                Overflow::saturate, upper);
  const float infinity = bits_float(numerics::kF32Infinity);
  writer.encode({"overflow_becomes_largest", "rocm-systems#8800",
                 "without saturation, overflow and infinity became 448 instead of NaN"},
                "e4m3fn", Overflow::special,
                {465.0f, 480.0f, 1e4f, infinity, -465.0f, -1e30f, -infinity});
  writer.encode(
      {"fnuz_largest_224", "DeepEP#17", "224 was taken for the largest number of e4m3fnuz"},
      "e4m3fnuz", Overflow::saturate, {224.0f, 232.0f, 233.0f, 240.0f, 247.0f, -235.0f, -240.0f});
  // Fractions that are less than one half, with low bits only.
  std::vector<float> small_fractions;
  for (const std::uint32_t fraction : {1u, 0x80u, 0xFFFFu, 0x80001u, 0xFFFFFu}) {
    for (const std::uint32_t field : {1u, 64u, 126u, 127u, 130u, 253u}) {
      small_fractions.push_back(bits_float(field << 23 | fraction));
    }
  }
  writer.encode_e8m0_up({"e8m0_cast_to_nearest", "ml_dtypes#298",
                         "the conversion to E8M0 rounds to nearest, where MX recipes round up"},
                        small_fractions);
  writer.encode_e8m0_up({"e8m0_up_ignores_bits", "onnx#7030, onnx#7784",
                         "rounding up ignored two bits of the fraction: 1.125 became 1"},
                        {1.125f, 1.25f, 1.375f, 2.25f, 5.0f, 0.28125f, 0x1.4p-100f, 0x1.2p100f});
}

void decoded(CaseWriter& writer) {
  const KnownMistake meanings{"e3m4_has_two_meanings", "modular#4794",
                              "one library's e3m4 has infinities (e3m4ieee), another's has none"};
  std::vector<std::uint32_t> top;
  for (std::uint32_t code = 0x6E; code < 0x80; ++code) {
    top.push_back(code);
    top.push_back(code | 0x80u);
  }
  writer.decode(meanings, "e3m4", top);
  writer.decode(meanings, "e3m4ieee", top);
  writer.decode({"nan_read_as_480", "ram-coffers#716", "the NaN codes of e4m3fn became 480"},
                "e4m3fn", {0x7E, 0x7F, 0xFE, 0xFF});
  writer.decode({"e8m0_nan_read_as_infinity", "llvm#214919", "the NaN of e8m0 became infinity"},
                "e8m0", {0x00, 0xFE, 0xFF});
  writer.decode({"fnuz_nan_read_as_zero", "triton#10745", "0x80 became -0 instead of NaN"},
                "e4m3fnuz", {0x00, 0x7F, 0x80, 0x81, 0xFF});
}

void scales(CaseWriter& writer, const Implementation& expected) {
  const float largest = numerics::max_finite(numerics::kE4M3);
  writer.e8m0({"e8m0_scale_to_nearest", "mlx#4353",
               "the scale was rounded to nearest, so that the largest elements saturated"},
              "e4m3fn", ScaleRounding::ceil, at_powers(1.2f * largest, 0));
  writer.e8m0({"e8m0_ceil_of_a_rounded_logarithm", "sglang#29954",
               "ceil(log2(x)) in FP32 missed ratios one unit above a power of two"},
              "e4m3fn", ScaleRounding::ceil, at_powers(largest, 1));
  writer.e8m0({"e8m0_exact_powers_doubled", "onnxruntime#32122",
               "frexp has the mantissa 0.5 for a power of two: the scale was twice too large"},
              "e4m3fn", ScaleRounding::ceil, at_powers(largest, 0));
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.tile = {1, 128};
  spec.scale_source = ScaleSource::current;
  spec.scale.format = numerics::ScaleFormat::e8m0;
  spec.scale.rounding = ScaleRounding::ceil;
  QuantSpec floored = spec;
  floored.scale.amax_epsilon = 1e-10f;
  const KnownMistake layout{"zero_group_by_layout", "vllm#53339",
                            "groups of zeros had the scale 2^-33 or 2^-42, by memory layout"};
  std::vector<float> tiny(128 * 128, 0.0f);  // row r: zeros, or one value of 2^-(r+24)
  for (std::size_t r = 1; r < 24; ++r)
    tiny[r * 128 + r] = std::ldexp(1.25f, -24 - static_cast<int>(r));
  writer.quantize(layout, expected, floored, tiny, 128, false);
  writer.quantize(layout, expected, floored, tiny, 128, true);
  std::vector<float> with_nan(2 * 256, 0.5f);
  with_nan[3] = bits_float(numerics::kF32NaN);
  with_nan[256 + 130] = -bits_float(numerics::kF32NaN);
  with_nan[256 + 131] = 3.0f;
  writer.quantize({"nan_lost_in_amax", "TransformerEngine#3550",
                   "the packed maximum of BF16 pairs dropped NaN, so that the tile looked finite"},
                  expected, spec, with_nan, 2, false);
}

}  // namespace

void export_named_cases(VectorPack& pack, const Implementation& expected) {
  CaseWriter writer(pack);
  casts(writer);
  decoded(writer);
  scales(writer, expected);
}

}  // namespace fp8lab
