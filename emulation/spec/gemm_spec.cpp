#include "emulation/spec/gemm_spec.hpp"

#include <charconv>

#include <fmt/format.h>

#include "emulation/spec/recipe_names.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kPromote = "promote";

}  // namespace

std::string schedule_name(const GemmSpec& spec) {
  if (spec.schedule == Schedule::fast) return "fast";
  return fmt::format("{}:{}", kPromote, spec.promote_interval);
}

std::optional<ScheduleChoice> schedule_from_name(std::string_view name) {
  if (name == "fast") return ScheduleChoice{};
  if (name.substr(0, kPromote.size()) != kPromote) return std::nullopt;
  ScheduleChoice choice;
  choice.schedule = Schedule::promote;
  name.remove_prefix(kPromote.size());
  if (name.empty()) return choice;
  if (name.front() != ':') return std::nullopt;
  name.remove_prefix(1);
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data(), end, choice.promote_interval);
  if (error != std::errc{} || last != end || choice.promote_interval < 1) return std::nullopt;
  return choice;
}

QuantSpec multiplied_form(const Accumulator& accumulator, const QuantSpec& operand) {
  if (!operand.has_codebooks()) return operand;
  const numerics::FormatSpec& multiplied = accumulator.operand;
  if (multiplied != numerics::kBF16 && multiplied != numerics::kFP32) return operand;
  QuantSpec values;
  values.format = multiplied;
  if (!operand.transform.is<RangeExpansion>()) values.transform = operand.transform;
  return values;
}

std::string label(const GemmSpec& spec) {
  std::string text = fmt::format("{}/{}/{}", accumulator_name(spec.accumulator),
                                 schedule_name(spec), name_of(spec.output));
  if (spec.scale_order != ScaleOrder::automatic) {
    text += fmt::format("/{}", word_for(kScaleOrderNames, spec.scale_order));
  }
  if (spec.split_k > 1) text += fmt::format("/split_k:{}", spec.split_k);
  if (spec.alpha != 1.0f) text += fmt::format(" times {}", spec.alpha);
  return text;
}

}  // namespace fp8lab
