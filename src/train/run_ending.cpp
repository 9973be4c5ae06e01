#include "src/train/run_ending.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace fp8lab {
namespace {

/// fp8lab_analysis.stats.smoothed: NaN where a loss is not finite.
std::vector<double> smoothed(const std::vector<double>& losses) {
  const double half_life = std::max(1.0, static_cast<double>(losses.size()) / 50.0);
  const double keep = std::exp2(-1.0 / half_life);
  double average = 0, weight = 0;
  std::vector<double> smooth;
  for (const double loss : losses) {
    const bool finite = std::isfinite(loss);
    average = keep * average + (finite ? (1.0 - keep) * loss : 0.0);
    weight = keep * weight + (finite ? 1.0 - keep : 0.0);
    smooth.push_back(finite ? average / weight : std::numeric_limits<double>::quiet_NaN());
  }
  return smooth;
}

double best_of_first_third(const std::vector<double>& smooth) {
  const std::size_t third = std::max<std::size_t>(1, smooth.size() / 3);
  return *std::min_element(smooth.begin(), smooth.begin() + static_cast<std::ptrdiff_t>(third));
}

/// "cpt 5.545 at step 10, 3.2 at step 40".
std::string held_out_text(const RunData& run, std::size_t stage, bool& diverged) {
  const EvalRecord* first = nullptr;
  const EvalRecord* last = nullptr;
  for (const EvalRecord& record : run.eval) {
    if (record.stage != static_cast<std::int32_t>(stage)) continue;
    if (first == nullptr) first = &record;
    last = &record;
  }
  if (first == nullptr) return {};
  diverged = diverged || !std::isfinite(last->loss);
  const std::string& name = run.meta.stage_names[stage];
  const std::string begin = fmt::format("{} {:.5g} at step {}", name, first->loss, first->step);
  return first == last ? begin
                       : fmt::format("{}, {:.5g} at step {}", begin, last->loss, last->step);
}

/// How the training loss of a stage diverged; empty where it did not.
std::string divergence_text(const RunData& run, std::size_t stage) {
  // Steps without a target, and those that a fallback left out: the weights stay.
  std::set<std::int64_t> may_lack;
  for (const EventRecord& event : run.events) {
    if (event.kind == "no_targets" || event.kind == "fallback") may_lack.insert(event.step);
  }
  std::vector<double> losses;
  std::vector<std::int64_t> steps;
  for (const StepRecord& record : run.metrics) {
    const bool counts = std::isfinite(record.loss) || may_lack.count(record.step) == 0;
    if (record.stage != static_cast<std::int32_t>(stage) || !counts) continue;
    losses.push_back(record.loss);
    steps.push_back(record.step);
  }
  const std::optional<std::size_t> row = divergence_row(losses);
  if (!row) return {};
  const std::string& name = run.meta.stage_names[stage];
  if (!std::isfinite(losses[*row])) {
    return fmt::format("{}: the loss is {} at step {}", name, losses[*row], steps[*row]);
  }
  const std::vector<double> smooth = smoothed(losses);
  return fmt::format(
      "{}: the smoothed loss ends at {:.5g}, more than {} above {:.5g}, its minimum in the first "
      "third; from step {} on",
      name, smooth.back(), kDivergenceMargin, best_of_first_third(smooth), steps[*row]);
}

/// "3 early_warning, the first at step 6; 1 spike at step 9".
std::string events_text(const RunData& run) {
  struct Seen {
    std::int64_t count = 0, first = 0;
  };
  std::map<std::string, Seen> kinds;
  for (const EventRecord& event : run.events) {
    if (kinds[event.kind].count++ == 0) kinds[event.kind].first = event.step;
  }
  std::string text;
  for (const char* kind : {"early_warning", "spike", "nan", "fallback"}) {
    const auto found = kinds.find(kind);
    if (found == kinds.end()) continue;
    const auto& [count, first] = found->second;
    text += fmt::format("{}{} {}{} at step {}", text.empty() ? "" : "; ", count, kind,
                        count > 1 ? ", the first" : "", first);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::optional<std::size_t> divergence_row(const std::vector<double>& losses) {
  if (losses.empty()) return std::nullopt;
  for (std::size_t row = 0; row < losses.size(); ++row) {
    if (!std::isfinite(losses[row])) return row;
  }
  const std::vector<double> smooth = smoothed(losses);
  const double limit = best_of_first_third(smooth) + kDivergenceMargin;
  if (smooth.back() <= limit) return std::nullopt;
  std::size_t row = smooth.size();
  while (row > 0 && smooth[row - 1] > limit) --row;
  return row;
}

RunEnding describe_ending(const RunData& run) {
  RunEnding ending;
  std::string held_out, divergence;
  for (std::size_t stage = 0; stage < run.meta.stage_names.size(); ++stage) {
    const std::string measured = held_out_text(run, stage, ending.diverged);
    if (!measured.empty()) held_out += (held_out.empty() ? "" : "; ") + measured;
    const std::string broken = divergence_text(run, stage);
    if (!broken.empty()) divergence += (divergence.empty() ? "" : "; ") + broken;
  }
  ending.diverged = ending.diverged || !divergence.empty();
  ending.lines.push_back("held-out loss: " + (held_out.empty() ? "not measured" : held_out));
  if (ending.diverged) {
    ending.lines.push_back(
        "diverged: " + (divergence.empty() ? "the last held-out loss is not finite" : divergence));
  }
  ending.lines.push_back("warnings: " + events_text(run));
  return ending;
}

}  // namespace fp8lab
