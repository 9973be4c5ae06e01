#include "src/train/run_ending.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>

namespace fp8lab {
namespace {

/// Returns the bias-corrected exponential average with decay `keep`.
std::vector<double> smoothed(const std::vector<double>& losses, double keep) {
  double average = 0, weight = 0;
  std::vector<double> smooth;
  for (const double loss : losses) {
    average = keep * average + (1.0 - keep) * loss;
    weight = keep * weight + (1.0 - keep);
    smooth.push_back(average / weight);
  }
  return smooth;
}

/// Mirrors fp8lab_analysis.judge.stats.Limit.
struct DivergenceLimit {
  std::vector<double> smooth;
  double best = 0;
  double margin = 0;

  double highest() const { return best + margin; }
};

/// Mirrors fp8lab_analysis.judge.stats.divergence_limit. Precondition: at least one loss, all
/// finite.
DivergenceLimit divergence_limit(const std::vector<double>& losses) {
  const std::size_t third = std::max<std::size_t>(1, losses.size() / 3);
  const double half_life = std::max(3.0, static_cast<double>(losses.size()) / 25.0);
  const double keep = std::exp2(-1.0 / half_life);
  DivergenceLimit limit;
  limit.smooth = smoothed(losses, keep);
  if (losses.size() < kDivergenceRows) {
    limit.best = *std::min_element(limit.smooth.begin(),
                                   limit.smooth.begin() + static_cast<std::ptrdiff_t>(third));
    limit.margin = kShortDivergenceMargin;
    return limit;
  }
  const std::size_t settled = std::min(static_cast<std::size_t>(std::ceil(half_life)), third - 1);
  const auto begin = limit.smooth.begin();
  limit.best = *std::min_element(begin + static_cast<std::ptrdiff_t>(settled),
                                 begin + static_cast<std::ptrdiff_t>(third));
  double squares = 0;
  for (std::size_t i = 1; i < third; ++i) {
    squares += (losses[i] - losses[i - 1]) * (losses[i] - losses[i - 1]);
  }
  const auto differences = static_cast<double>(third - 1);
  const double noise =
      std::sqrt(squares / differences / 2.0) * std::sqrt((1.0 - keep) / (1.0 + keep));
  const double sigmas = 6.0 * (1.0 + 8.0 / differences);
  limit.margin = std::max(kDivergenceMargin, std::min(sigmas * noise, kLargestDivergenceMargin));
  // Rows of the first half-life also count if lower, with a margin that noise cannot explain.
  const double early = *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(settled));
  if (early + kLargestDivergenceMargin < limit.highest()) {
    limit.best = early;
    limit.margin = kLargestDivergenceMargin;
  }
  return limit;
}

/// Returns the evaluations of a stage.
std::vector<EvalRecord> held_out_of(const RunData& run, std::size_t stage) {
  std::vector<EvalRecord> records;
  for (const EvalRecord& record : run.eval) {
    if (record.stage == static_cast<std::int32_t>(stage)) records.push_back(record);
  }
  return records;
}

/// "cpt 5.545 at step 10, 3.2 at step 40".
std::string held_out_text(const std::string& stage, const std::vector<EvalRecord>& held_out) {
  if (held_out.empty()) return {};
  const EvalRecord &first = held_out.front(), &last = held_out.back();
  const std::string begin = fmt::format("{} {:.5g} at step {}", stage, first.loss, first.step);
  return held_out.size() == 1 ? begin
                              : fmt::format("{}, {:.5g} at step {}", begin, last.loss, last.step);
}

/// Returns the smallest finite loss before step `end`; infinity if there is none.
double best_before(const std::vector<EvalRecord>& held_out, std::int64_t end) {
  double best = std::numeric_limits<double>::infinity();
  for (const EvalRecord& record : held_out) {
    if (record.step < end && std::isfinite(record.loss)) best = std::min(best, record.loss);
  }
  return best;
}

/// Mirrors fp8lab_analysis.judge.divergence._overrules.
bool overrules(const std::vector<EvalRecord>& held_out, std::int64_t step) {
  const double best = best_before(held_out, step);
  return std::isfinite(best) && held_out.back().step >= step &&
         std::isfinite(held_out.back().loss) && held_out.back().loss <= best + kDivergenceMargin;
}

/// Returns the fault of the held-out losses of a stage with `rows` training losses; else empty.
std::string held_out_divergence(const std::string& stage, std::size_t rows,
                                const std::vector<EvalRecord>& held_out) {
  if (held_out.empty()) return {};
  const EvalRecord& last = held_out.back();
  if (!std::isfinite(last.loss)) return "the last held-out loss is not finite";
  const double best = best_before(held_out, std::numeric_limits<std::int64_t>::max());
  if (rows >= kDivergenceRows || last.loss <= best + kDivergenceMargin) return {};
  auto first = held_out.end();
  while (first != held_out.begin() && !(std::prev(first)->loss <= best + kDivergenceMargin)) {
    --first;
  }
  return fmt::format(
      "{}: the held-out loss ends at {:.5g}, more than {} above {:.5g}, its minimum; "
      "from step {} on",
      stage, last.loss, kDivergenceMargin, best, first->step);
}

/// Returns how a stage diverged; empty if it did not.
std::string divergence_text(const RunData& run, std::size_t stage,
                            const std::vector<EvalRecord>& held_out) {
  // Excludes steps without targets and steps that a fallback discarded: they did not change the
  // weights.
  std::set<std::int64_t> may_lack;
  for (const EventRecord& event : run.events) {
    if (event.kind == "no_targets" || event.kind == "fallback") may_lack.insert(event.step);
  }
  std::vector<double> losses;
  std::vector<const StepRecord*> rows;
  // A training of another program, which lists no identity, writes NaN for what it did not measure.
  const auto is_finite_norm = [&](double norm) {
    return std::isfinite(norm) || (run.meta.identity.empty() && std::isnan(norm));
  };
  for (const StepRecord& record : run.metrics) {
    const bool is_finite = std::isfinite(record.loss) && is_finite_norm(record.grad_norm);
    const bool counts = is_finite || may_lack.count(record.step) == 0;
    if (record.stage != static_cast<std::int32_t>(stage) || !counts) continue;
    rows.push_back(&record);
    losses.push_back(is_finite ? record.loss : std::numeric_limits<double>::quiet_NaN());
  }
  const std::string& name = run.meta.stage_names[stage];
  const std::optional<std::size_t> row = divergence_row(losses);
  if (row && !std::isfinite(losses[*row])) {
    const StepRecord& first = *rows[*row];
    const bool is_loss = !std::isfinite(first.loss);
    return fmt::format("{}: the {} is {} at step {}", name, is_loss ? "loss" : "gradient norm",
                       is_loss ? first.loss : first.grad_norm, first.step);
  }
  if (!row) return held_out_divergence(name, losses.size(), held_out);
  const DivergenceLimit limit = divergence_limit(losses);
  const auto beyond = std::find_if(limit.smooth.begin(), limit.smooth.end(),
                                   [&](double loss) { return loss > limit.highest(); });
  if (overrules(held_out, rows[static_cast<std::size_t>(beyond - limit.smooth.begin())]->step)) {
    return held_out_divergence(name, losses.size(), held_out);
  }
  return fmt::format(
      "{}: the smoothed loss ends at {:.5g}, more than {:.3g} above {:.5g}, its minimum in the "
      "first third; from step {} on",
      name, limit.smooth.back(), limit.margin, limit.best, rows[*row]->step);
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
  for (const char* kind : {"early_warning", "spike", "nan", "overflow", "fallback"}) {
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
  for (std::size_t row = 0; row < losses.size(); ++row) {
    if (!std::isfinite(losses[row])) return row;
  }
  if (losses.empty()) return std::nullopt;
  const DivergenceLimit limit = divergence_limit(losses);
  if (limit.smooth.back() <= limit.highest()) return std::nullopt;
  std::size_t row = losses.size();
  while (row > 0 && limit.smooth[row - 1] > limit.highest()) --row;
  return row;
}

RunEnding describe_ending(const RunData& run) {
  RunEnding ending;
  std::string measured, divergence;
  const auto join = [](std::string& all, const std::string& text) {
    if (!text.empty()) all += (all.empty() ? "" : "; ") + text;
  };
  for (std::size_t stage = 0; stage < run.meta.stage_names.size(); ++stage) {
    const std::vector<EvalRecord> held_out = held_out_of(run, stage);
    join(measured, held_out_text(run.meta.stage_names[stage], held_out));
    const std::string diverged = divergence_text(run, stage, held_out);
    if (divergence.empty() && !diverged.empty()) ending.stage = stage;
    join(divergence, diverged);
  }
  ending.diverged = !divergence.empty();
  ending.lines.push_back("held-out loss: " + (measured.empty() ? "not measured" : measured));
  if (ending.diverged) ending.lines.push_back("diverged: " + divergence);
  ending.lines.push_back("warnings: " + events_text(run));
  return ending;
}

}  // namespace fp8lab
