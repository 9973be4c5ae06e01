#include "emulation/api/gemm_spec.hpp"

#include <array>
#include <charconv>

#include <fmt/format.h>

namespace fp8lab {
namespace {

struct NamedAccumulator {
  std::string_view name;
  Accumulator accumulator;
};

constexpr std::array<NamedAccumulator, 5> kAccumulators = {{
    {"sm90_wgmma_fp8", Accumulator::sm90_wgmma_fp8},
    {"sm90_mma_sync_fp8", Accumulator::sm90_mma_sync_fp8},
    {"sm90_bf16", Accumulator::sm90_bf16},
    {"ideal_fp32", Accumulator::ideal_fp32},
    {"ideal_exact", Accumulator::ideal_exact},
}};

constexpr std::string_view kPromote = "promote";

}  // namespace

std::string accumulator_name(Accumulator accumulator) {
  for (const NamedAccumulator& named : kAccumulators) {
    if (named.accumulator == accumulator) return std::string(named.name);
  }
  return "?";
}

std::optional<Accumulator> accumulator_by_name(std::string_view name) {
  for (const NamedAccumulator& named : kAccumulators) {
    if (named.name == name) return named.accumulator;
  }
  return std::nullopt;
}

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

QuantSpec multiplied_form(Accumulator accumulator, const QuantSpec& operand) {
  if (!operand.has_codebooks()) return operand;
  QuantSpec values;
  if (operand.transform.is_along_k()) values.transform = operand.transform;
  switch (accumulator) {
    case Accumulator::sm90_wgmma_fp8:
    case Accumulator::sm90_mma_sync_fp8: return operand;
    case Accumulator::sm90_bf16: values.format = numerics::kBF16; break;
    case Accumulator::ideal_fp32:
    case Accumulator::ideal_exact: values.format = numerics::kFP32; break;
  }
  return values;
}

std::string label(const GemmSpec& spec) {
  std::string text = fmt::format("{}/{}/{}", accumulator_name(spec.accumulator),
                                 schedule_name(spec), name_of(spec.output));
  if (spec.split_k > 1) text += fmt::format("/split_k:{}", spec.split_k);
  return text;
}

}  // namespace fp8lab
