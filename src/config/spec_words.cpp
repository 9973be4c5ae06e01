#include "src/config/spec_words.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "emulation/api/error.hpp"
#include "emulation/api/gemm_rules.hpp"
#include "emulation/api/recipe_names.hpp"
#include "emulation/api/tensor_core.hpp"
#include "src/config/config.hpp"
#include "src/config/nearest_name.hpp"
#include "src/config/recipe_draft.hpp"

namespace fp8lab {
namespace {

template <class T, std::size_t N>
bool take(const std::array<Named<T>, N>& words, const std::string& word, T& value) {
  for (const Named<T>& entry : words) {
    if (entry.name != word) continue;
    value = entry.value;
    return true;
  }
  return false;
}

template <class Number>
std::optional<Number> number_after(const std::string& word, std::string_view prefix) {
  if (word.rfind(prefix, 0) != 0) return std::nullopt;
  Number value{};
  const char* const end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data() + prefix.size(), end, value);
  if (error != std::errc{} || last != end) return std::nullopt;
  return value;
}

// A word of a quantizer that shapes its current scale.
bool take_scale_word(const std::string& word, QuantSpec& spec) {
  if (word == "mx32") {
    spec.tile = {1, 32};
    spec.scale.format = numerics::ScaleFormat::e8m0;
    return true;
  }
  if (word == "nv16") {
    spec.tile = {1, 16};
    spec.scale.format = numerics::ScaleFormat::nv_two_level;
    return true;
  }
  if (const std::optional<TileShape> tile = tile_from_name(word)) {
    spec.tile = *tile;
    return true;
  }
  return take(kScaleFormatNames, word, spec.scale.format) ||
         (word != "nearest" && take(kScaleRoundingNames, word, spec.scale.rounding)) ||
         take(kScaleArithmeticNames, word, spec.scale.arithmetic) ||
         (word != "none" && take(kFourOverSixNames, word, spec.scale.four_over_six));
}

GemmRequest problem_of_recipe(const std::string& text, std::size_t colon) {
  const LinearRecipe recipe = load_recipe(text.substr(0, colon)).linear;
  const std::string word = text.substr(colon + 1);
  for (const GemmRole role : kGemmRoles) {
    if (word != gemm_role_name(role)) continue;
    const std::size_t slot = 2 * static_cast<std::size_t>(role);
    return {recipe.gemm(role), recipe.slots[slot], recipe.slots[slot + 1]};
  }
  throw Error(fmt::format("GEMM '{}': unknown role '{}'{}; accepted: fprop, dgrad, wgrad", text,
                          word, did_you_mean(word, "fprop, dgrad, wgrad")));
}

}  // namespace

std::vector<std::string> split_at_slashes(const std::string& text) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (true) {
    const std::size_t slash = text.find('/', begin);
    words.push_back(text.substr(begin, slash - begin));
    if (slash == std::string::npos) return words;
    begin = slash + 1;
  }
}

std::optional<int> split_k_from_word(const std::string& word) {
  std::optional<int> split = number_after<int>(word, "split_k:");
  if (!split) split = number_after<int>(word, "split_k=");
  return split && *split >= 1 && *split <= 64 ? split : std::nullopt;
}

QuantSpec parse_quant_spec(const std::string& text) {
  const std::vector<std::string> words = split_at_slashes(text);
  QuantSpec spec;
  const std::optional<numerics::FormatSpec> format = format_by_name(words.front());
  if (!format || words.front() == "e4m3") {
    constexpr std::string_view kFormats =
        "e4m3fn, e5m2, e3m4, e2m3, e3m2, e2m1, e4m3_240, int8, int4, mxint8, lns8, bf16, fp32, or "
        "eXmY such as e5m1, intN, lnsBgG such as lns8g16, logfmtN";
    throw Error(fmt::format("quantizer '{}': unknown format '{}'{}; accepted: {}", text,
                            words.front(), did_you_mean(words.front(), kFormats), kFormats));
  }
  spec.format = *format;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (take_scale_word(word, spec)) {
      if (spec.scale_source == ScaleSource::none) spec.scale_source = ScaleSource::current;
      continue;
    }
    if (const std::optional<float> scale = number_after<float>(word, "static:")) {
      spec.scale_source = ScaleSource::static_scale;
      spec.static_scale = *scale;
      continue;
    }
    if (word != "nearest" && take(kRoundingNames, word, spec.rounding)) continue;
    const std::optional<Transform> transform = transform_from_name(word);
    if (transform && *transform) {
      spec.transform = *transform;
      if (spec.has_codebooks()) spec.scale_source = ScaleSource::current;
      continue;
    }
    constexpr std::string_view kWords =
        "tensor, row, RxC, mx32, nv16, fp32, pow2, e8m0, bf16, e4m3, nv_two_level, mae, mse, ceil, "
        "enc_floor, ocp_floor, rceil, even, enc_div, dec_div_recip, dec_div, static:NUMBER, "
        "ties_down, ties_positive, toward_zero, stochastic, hadamard:BLOCK[:SIGNS[:after]], "
        "smooth:STRENGTH, expand, clamp:QUANTILE[:compensated]";
    throw Error(fmt::format("quantizer '{}': unknown word '{}'{}; accepted: {}", text, word,
                            did_you_mean(word, kWords), kWords));
  }
  if (!spec.is_cast() && words.size() > 1) {
    throw Error(fmt::format("quantizer '{}': {} is passed through; accepted: no further words",
                            text, words.front()));
  }
  if (!spec.is_quantized() && spec.has_scale()) {
    throw Error(fmt::format("quantizer '{}': {} has more than 8 bits and takes no scale", text,
                            words.front()));
  }
  if (spec.scale.four_over_six != numerics::FourOverSix::none &&
      spec.scale.format != numerics::ScaleFormat::nv_two_level) {
    throw Error(fmt::format("quantizer '{}': mae and mse are for nv16 or nv_two_level", text));
  }
  const bool usable = spec.static_scale > 0.0f && std::isfinite(spec.static_scale);
  if (spec.scale_source == ScaleSource::static_scale && (!usable || !spec.tile.is_tensor())) {
    throw Error(
        fmt::format("quantizer '{}': a static scale is one number above 0 for the tensor", text));
  }
  return spec;
}

QuantSpec parse_quant_keys(const std::vector<SpecKey>& keys) {
  toml::table slot;
  for (const auto& [key, value] : keys) {
    if (key == "orientation_source" || key == "weight_source") {
      throw Error(fmt::format("QuantSpec: '{}' does not describe a single operand", key));
    }
    std::visit([&slot, &name = key](const auto& plain) { slot.insert_or_assign(name, plain); },
               value);
  }
  if (!slot.contains("format")) throw Error("QuantSpec: 'format' is missing");
  const toml::table document{{"slots", toml::table{{"default", slot}}}};
  TomlReader reader(document, "", "QuantSpec");
  RecipeDraft draft(DType::bf16);
  draft.read(reader);
  return draft.resolve().slot(Slot::fprop_x);
}

GemmSpec parse_gemm_spec(const std::string& text) {
  const std::vector<std::string> words = split_at_slashes(text);
  GemmSpec spec;
  const std::optional<Accumulator> accumulator = accumulator_by_name(words.front());
  if (!accumulator) {
    std::string names;
    for (const TensorCoreProfile& known : tensor_core_profiles()) {
      names += ", " + std::string(known.name);
    }
    throw Error(fmt::format(
        "GEMM '{}': unknown accumulator '{}'{}; accepted: {}, or RECIPE:ROLE such "
        "as infir2:fprop",
        text, words.front(), did_you_mean(words.front(), names.substr(2)), names.substr(2)));
  }
  spec.accumulator = *accumulator;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (const std::optional<ScheduleChoice> schedule = schedule_from_name(word)) {
      spec.schedule = schedule->schedule;
      spec.promote_interval = schedule->promote_interval;
      continue;
    }
    if (const std::optional<int> split = split_k_from_word(word)) {
      spec.split_k = *split;
      continue;
    }
    if (word == "f32") {  // as label() writes it
      spec.output = DType::f32;
      continue;
    }
    if (take(kStorageNames, word, spec.output)) continue;
    if (take(kScaleOrderNames, word, spec.scale_order)) continue;
    constexpr std::string_view kWords =
        "fast, promote:G, bf16, fp32, automatic, epilogue, b_then_a, a_then_b, product_first, "
        "in_instruction, split_k:N";
    throw Error(fmt::format("GEMM '{}': unknown word '{}'{}; accepted: {}", text, word,
                            did_you_mean(word, kWords), kWords));
  }
  return spec;
}

GemmRequest parse_gemm_problem(const std::string& text) {
  // "promote:128" holds a colon as well; a recipe's comes before any slash of a spec.
  const bool is_words = accumulator_by_name(text.substr(0, text.find('/'))).has_value();
  const std::size_t colon = text.rfind(':');
  if (!is_words && colon != std::string::npos) return problem_of_recipe(text, colon);
  GemmRequest problem;
  problem.gemm = parse_gemm_spec(text);
  problem.a = problem.b = profile_of(problem.gemm.accumulator).default_operand();
  return problem;
}

}  // namespace fp8lab
