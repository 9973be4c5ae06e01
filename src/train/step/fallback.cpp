#include "src/train/step/fallback.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <string_view>

namespace fp8lab {
namespace {

std::optional<std::string> spike(std::string_view what, double value, double mean, double most,
                                 const std::function<std::string()>& tensor) {
  if (!(most > 0) || !(value > most * mean)) return std::nullopt;
  return fmt::format("{} {:.6g} is {:.3g} times its mean of {:.6g}, allowed are {:.3g}{}", what,
                     value, value / mean, mean, most,
                     tensor ? "; largest in " + tensor() : std::string());
}

bool is_finite(const StepSigns& step) {
  return std::isfinite(step.loss) && std::isfinite(step.gradient_norm);
}

template <class Number>
bool take(std::string_view& text, Number& number, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const bool is_last = text.empty();
  if (!is_last && text.front() != ':') return false;
  if (!is_last) text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<std::string> reason_to_fall_back(const FallbackCriteria& when,
                                               const FallbackState& state, const StepSigns& step) {
  if (when.nonfinite && !is_finite(step)) {
    return fmt::format("loss {:.6g}, gradient norm {:.6g}: not finite, first in {}", step.loss,
                       step.gradient_norm, step.gradient());
  }
  if (state.seen >= when.window) {
    if (const auto reason = spike("loss", step.loss, state.loss, when.loss_spike, {}))
      return reason;
    if (const auto reason = spike("gradient norm", step.gradient_norm, state.gradient_norm,
                                  when.gradient_norm, step.gradient)) {
      return reason;
    }
  }
  if (!(when.saturation > 0) || step.statistics.empty()) return std::nullopt;
  const auto saturation = [](const OperandStatistics& statistics) {
    return statistics.is_absent() ? 0.0 : statistics.saturation_fraction;
  };
  const auto largest =
      std::max_element(step.statistics.begin(), step.statistics.end(),
                       [&](const auto& a, const auto& b) { return saturation(a) < saturation(b); });
  if (!(largest->saturation_fraction > when.saturation)) return std::nullopt;
  return fmt::format("{:.3g} of {} saturate, allowed are {:.3g}", largest->saturation_fraction,
                     step.operand(static_cast<std::size_t>(largest - step.statistics.begin())),
                     when.saturation);
}

void remember(const FallbackCriteria& when, const StepSigns& step, FallbackState& state) {
  if (!is_finite(step)) return;
  ++state.seen;
  const auto weight = static_cast<double>(std::min(state.seen, when.window));
  state.loss += (step.loss - state.loss) / weight;
  state.gradient_norm += (step.gradient_norm - state.gradient_norm) / weight;
}

std::string fallback_text(const FallbackState& state) {
  return fmt::format("{}:{}:{:016x}:{:016x}", state.fallen ? 1 : 0, state.seen,
                     std::bit_cast<std::uint64_t>(state.loss),
                     std::bit_cast<std::uint64_t>(state.gradient_norm));
}

std::optional<FallbackState> parse_fallback(const std::string& text) {
  std::string_view rest = text;
  int fallen = 0;
  FallbackState state;
  std::uint64_t loss = 0, norm = 0;
  const bool whole = take(rest, fallen, 10) && take(rest, state.seen, 10) && take(rest, loss, 16) &&
                     take(rest, norm, 16);
  state.fallen = fallen == 1;
  state.loss = std::bit_cast<double>(loss);
  state.gradient_norm = std::bit_cast<double>(norm);
  if (!whole || state.seen < 0 || fallback_text(state) != text) return std::nullopt;
  return state;
}

}  // namespace fp8lab
