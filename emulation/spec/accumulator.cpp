#include "emulation/spec/accumulator.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "emulation/numerics/codec.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

using numerics::Alignment;
using numerics::ChainUnit;
using numerics::OutputKind;
using numerics::ScaleFormat;

constexpr std::string_view kCustom = "custom(";
constexpr int kMostProducts = 32;      // terms of numerics::fused_group, besides the accumulator
constexpr int kMostFractionBits = 48;  // the sum of 33 terms then fits 64 bits

}  // namespace

int Accumulator::products() const {
  switch (unit) {
    case ChainUnit::fused_group: return group.products;
    case ChainUnit::mma_sync_fp8: return 32;
    case ChainUnit::ideal_fp32:
    case ChainUnit::ideal_exact: break;
  }
  return 1;
}

std::optional<numerics::FormatSpec> Accumulator::second_operand() const {
  if (!takes_e5m2) return std::nullopt;
  return operand.has_nan_at_negative_zero() ? numerics::kE5M2Fnuz : numerics::kE5M2;
}

std::optional<numerics::FormatSpec> Accumulator::carrier(const numerics::FormatSpec& format) const {
  if (second_operand() == format) return format;
  if (numerics::holds_values(operand, format)) return operand;
  return std::nullopt;
}

QuantSpec Accumulator::default_operand() const {
  QuantSpec spec;
  if (operand != numerics::kFP32) spec.format = operand;
  if (!group.block_scales) return spec;
  BlockScale finest = block_scales[0];
  for (const BlockScale& scale : block_scales) {
    if (scale.width > 0 && scale.width < finest.width) finest = scale;
  }
  spec.scale_source = ScaleSource::current;
  spec.tile = {1, finest.width};
  spec.scale.format = finest.format;
  if (finest.format == ScaleFormat::e8m0) spec.scale.rounding = numerics::ScaleRounding::rceil;
  return spec;
}

bool Accumulator::takes_scales(const QuantSpec& spec) const {
  if (!spec.has_scale()) return false;
  for (const BlockScale& scale : block_scales) {
    const bool same = scale.format == spec.scale.format && scale.width == spec.tile.cols;
    if (scale.width > 0 && same) return true;
  }
  return false;
}

std::string describe(const Accumulator& accumulator) {
  const numerics::GroupModel& group = accumulator.group;
  const bool to_f16 = group.output == OutputKind::f16_nearest;
  switch (accumulator.unit) {
    case ChainUnit::ideal_fp32: return "fp32 fma, k ascending";
    case ChainUnit::ideal_exact: return "exact sum, fp32 nearest";
    case ChainUnit::mma_sync_fp8:
      return fmt::format("fp16 groups of 16 twice over 32, {} fraction bits, c added last in {}",
                         group.fraction_bits, to_f16 ? "fp16" : "fp32");
    case ChainUnit::fused_group: break;
  }
  std::string text =
      fmt::format("groups of {}, {} fraction bits, ", group.products, group.fraction_bits);
  if (group.partial_sums > 1) text += fmt::format("{} sums, ", group.partial_sums);
  if (group.late_fraction_bits > 0) {
    text += fmt::format("c added last with {}, ", group.late_fraction_bits);
  }
  text += to_f16 ? "fp16 nearest"
                 : fmt::format("fp32 {} {} bits",
                               group.output_rounding == Alignment::truncate ? "cut to" : "nearest",
                               group.output_mantissa_bits);
  if (group.min_exponent != numerics::kNoExponentFloor) {
    text += fmt::format(", floor {}", group.min_exponent);
  }
  if (group.exact_products > 0) text += fmt::format(", exact {}s", group.exact_products);
  for (const BlockScale& scale : accumulator.block_scales) {
    if (scale.width == 0) continue;
    text +=
        fmt::format(", {} scale per {}", word_for(kScaleFormatNames, scale.format), scale.width);
  }
  return text;
}

std::string operand_names(const Accumulator& accumulator) {
  const std::optional<numerics::FormatSpec> second = accumulator.second_operand();
  return format_name(accumulator.operand) + (second ? " " + format_name(*second) : "");
}

namespace {

constexpr std::array<Named<OutputKind>, 2> kOutputNames{
    {{"fp32", OutputKind::f32_truncated}, {"fp16", OutputKind::f16_nearest}}};
constexpr std::array<Named<Alignment>, 2> kAlignmentNames{
    {{"truncate", Alignment::truncate}, {"nearest", Alignment::nearest_even}}};

int whole_number(std::string_view key, std::string_view value) {
  int result = 0;
  const char* const end = value.data() + value.size();
  const auto [last, error] = std::from_chars(value.data(), end, result);
  if (error == std::errc{} && last == end) return result;
  throw AccumulatorError({.key = std::string(key),
                          .verb = "=",
                          .found = fmt::format("'{}'", value),
                          .accepted = "an integer"});
}

template <class Enum, std::size_t kCount>
Enum word(std::string_view key, std::string_view value,
          const std::array<Named<Enum>, kCount>& names) {
  std::string accepted;
  for (const Named<Enum>& name : names) {
    if (name.name == value) return name.value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(name.name);
  }
  throw AccumulatorError({.key = std::string(key),
                          .verb = "=",
                          .found = fmt::format("'{}'", value),
                          .accepted = accepted});
}

/// A parameter of a custom accumulator: its key, and access to its value as text.
struct Parameter {
  std::string_view key;
  std::string (*get)(const Accumulator&);
  void (*set)(Accumulator&, std::string_view key, std::string_view value);
};

constexpr Parameter kParameters[] = {
    {"products", [](const Accumulator& a) { return std::to_string(a.group.products); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.products = whole_number(key, value);
     }},
    {"fraction_bits", [](const Accumulator& a) { return std::to_string(a.group.fraction_bits); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.fraction_bits = whole_number(key, value);
     }},
    {"output_mantissa_bits",
     [](const Accumulator& a) { return std::to_string(a.group.output_mantissa_bits); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.output_mantissa_bits = whole_number(key, value);
     }},
    {"output",
     [](const Accumulator& a) { return std::string(word_for(kOutputNames, a.group.output)); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.output = word(key, value, kOutputNames);
       if (a.group.output == OutputKind::f16_nearest) a.group.output_mantissa_bits = 10;
     }},
    {"output_rounding",
     [](const Accumulator& a) {
       return std::string(word_for(kAlignmentNames, a.group.output_rounding));
     },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.output_rounding = word(key, value, kAlignmentNames);
     }},
    {"alignment",
     [](const Accumulator& a) { return std::string(word_for(kAlignmentNames, a.group.alignment)); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.alignment = word(key, value, kAlignmentNames);
     }},
    {"min_exponent",
     [](const Accumulator& a) {
       return a.group.min_exponent == numerics::kNoExponentFloor
                  ? std::string("none")
                  : std::to_string(a.group.min_exponent);
     },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.min_exponent =
           value == "none" ? numerics::kNoExponentFloor : whole_number(key, value);
     }},
    {"late_fraction_bits",
     [](const Accumulator& a) { return std::to_string(a.group.late_fraction_bits); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.late_fraction_bits = whole_number(key, value);
     }},
    {"partial_sums", [](const Accumulator& a) { return std::to_string(a.group.partial_sums); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       a.group.partial_sums = whole_number(key, value);
     }},
    {"operand", [](const Accumulator& a) { return format_name(a.operand); },
     [](Accumulator& a, std::string_view key, std::string_view value) {
       const std::optional<numerics::FormatSpec> format = format_by_name(value);
       if (!format)
         throw AccumulatorError({.key = std::string(key),
                                 .verb = "=",
                                 .found = fmt::format("'{}'", value),
                                 .accepted = "a format such as e4m3fn"});
       a.operand = *format;
       a.takes_e5m2 = *format == numerics::kE4M3 || *format == numerics::kE4M3Fnuz;
     }},
};

}  // namespace

std::string accumulator_name(const Accumulator& accumulator) {
  if (const TensorCoreProfile* const named = profile_of(accumulator)) {
    return std::string(named->name);
  }
  std::string text(kCustom);
  const Accumulator base = custom_accumulator({});
  for (const Parameter& parameter : kParameters) {
    const std::string value = parameter.get(accumulator);
    const bool always = &parameter < kParameters + 3;  // the three most important ones
    if (!always && value == parameter.get(base)) continue;
    text += fmt::format("{}{}={}", text.back() == '(' ? "" : ",", parameter.key, value);
  }
  return text + ")";
}

Accumulator custom_accumulator(std::span<const AccumulatorParameter> values) {
  Accumulator accumulator = Accumulator::sm90_wgmma_fp8;
  std::string known;
  for (const Parameter& parameter : kParameters) {
    known += (known.empty() ? "" : ", ") + std::string(parameter.key);
  }
  for (const AccumulatorParameter& value : values) {
    const auto* const found =
        std::find_if(std::begin(kParameters), std::end(kParameters),
                     [&](const Parameter& parameter) { return parameter.key == value.key; });
    if (found == std::end(kParameters)) {
      throw AccumulatorError({.noun = "unknown parameter", .key = value.key, .accepted = known});
    }
    found->set(accumulator, value.key, value.value);
  }
  if (const std::string reason = accumulator_refusal(accumulator); !reason.empty()) {
    throw AccumulatorError({.reason = reason});
  }
  return accumulator;
}

std::optional<Accumulator> accumulator_by_name(std::string_view name) {
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    if (profile.name == name) return profile.accumulator;
  }
  if (!name.starts_with(kCustom) || !name.ends_with(')')) return std::nullopt;
  name.remove_prefix(kCustom.size());
  name.remove_suffix(1);
  std::vector<AccumulatorParameter> values;
  while (!name.empty()) {
    const std::string_view one = name.substr(0, name.find(','));
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos) {
      throw AccumulatorError(
          {.noun = "parameter", .found = fmt::format("'{}'", one), .accepted = "KEY=VALUE"});
    }
    values.push_back({std::string(one.substr(0, equals)), std::string(one.substr(equals + 1))});
    name.remove_prefix(std::min(name.size(), one.size() + 1));
  }
  return custom_accumulator(values);
}

namespace {

std::string outside(std::string_view key, int value, int low, int high) {
  return fmt::format("{} = {}; accepted: {} to {}", key, value, low, high);
}

/// Returns why no group can add its accumulator last with these parameters; empty if one can.
std::string late_refusal(const numerics::GroupModel& group) {
  if (group.partial_sums < 1 || group.partial_sums > numerics::kMostPartialSums) {
    return outside("partial_sums", group.partial_sums, 1, numerics::kMostPartialSums);
  }
  if (group.late_fraction_bits == 0) {
    if (group.partial_sums == 1) return {};
    return fmt::format("partial_sums = {}; accepted: 1, or late_fraction_bits above 0",
                       group.partial_sums);
  }
  if (group.late_fraction_bits < group.fraction_bits ||
      group.late_fraction_bits > kMostFractionBits) {
    return outside("late_fraction_bits", group.late_fraction_bits, group.fraction_bits,
                   kMostFractionBits) +
           ", or 0";
  }
  if (group.output == OutputKind::f16_nearest) {
    return "output = fp16; accepted: fp32, or late_fraction_bits = 0";
  }
  if (group.min_exponent != numerics::kNoExponentFloor) {
    return fmt::format("min_exponent = {}; accepted: none, or late_fraction_bits = 0",
                       group.min_exponent);
  }
  return {};
}

}  // namespace

std::string accumulator_refusal(const Accumulator& accumulator) {
  const numerics::GroupModel& group = accumulator.group;
  if (group.products < 1 || group.products > kMostProducts) {
    return outside("products", group.products, 1, kMostProducts);
  }
  if (group.fraction_bits < 0 || group.fraction_bits > kMostFractionBits) {
    return outside("fraction_bits", group.fraction_bits, 0, kMostFractionBits);
  }
  const int widest = group.output == OutputKind::f16_nearest ? 10 : 23;
  const int narrowest = group.output == OutputKind::f16_nearest ? 10 : 1;
  if (group.output_mantissa_bits < narrowest || group.output_mantissa_bits > widest) {
    return outside("output_mantissa_bits", group.output_mantissa_bits, narrowest, widest);
  }
  const bool floor = group.min_exponent != numerics::kNoExponentFloor;
  if (floor && (group.min_exponent < -300 || group.min_exponent > 127)) {
    return outside("min_exponent", group.min_exponent, -300, 127) + ", or none";
  }
  if (std::string late = late_refusal(group); !late.empty()) return late;
  const numerics::FormatSpec& operand = accumulator.operand;
  if (!operand.has_sign || operand.encoding != numerics::Encoding::floating ||
      operand.mantissa_bits > 10) {
    return "operand = " + format_name(operand) +
           "; accepted: signed floating-point formats of at most 10 mantissa bits";
  }
  return {};
}

}  // namespace fp8lab
