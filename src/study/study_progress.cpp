#include "src/study/study_progress.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fp8lab {
namespace {

/// Returns the tokens of the first `steps` steps of a run.
double tokens_of(const RunConfig& config, std::int64_t steps) {
  double tokens = 0;
  for (const StageConfig& stage : config.stages) {
    const std::int64_t of_stage = std::min(steps, stage.steps);
    tokens += static_cast<double>(of_stage * stage.batch_sequences * stage.sequence_length);
    steps -= of_stage;
  }
  return tokens;
}

double all_tokens(const RunConfig& config) {
  std::int64_t steps = 0;
  for (const StageConfig& stage : config.stages) steps += stage.steps;
  return tokens_of(config, steps);
}

std::string duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace

StudyProgress::StudyProgress(const std::vector<const RunConfig*>& shared,
                             const std::vector<const RunConfig*>& arms, int jobs,
                             std::function<void(const std::string&)> say)
    : jobs_(static_cast<std::size_t>(std::max(1, jobs))), say_(std::move(say)) {
  for (const RunConfig* config : shared) runs_[config->name] = {config, true};
  for (const RunConfig* config : arms) runs_[config->name] = {config, false};
}

void StudyProgress::finished(const ChildResult& child) {
  const auto found = runs_.find(child.name);
  if (found == runs_.end()) return;
  Run& run = found->second;
  run.is_done = true;
  ++done_;
  running_.erase(child.name);
  if (child.exit_code != 0) return;
  Rate& rate = rates_[run.config->recipe];
  rate.tokens += all_tokens(*run.config) - tokens_of(*run.config, run.first - 1);
  rate.seconds += child.seconds;
}

double StudyProgress::seconds_of_token(const RunConfig& config) const {
  const auto ended = rates_.find(config.recipe);
  if (ended != rates_.end() && ended->second.tokens > 0) {
    return ended->second.seconds / ended->second.tokens;
  }
  const auto own = running_.find(config.name);
  if (own != running_.end() && own->second.tokens > 0) {
    return own->second.seconds / own->second.tokens;
  }
  Rate all;
  for (const auto* rates : {&rates_, &running_}) {
    for (const auto& [name, rate] : *rates) {
      all.tokens += rate.tokens;
      all.seconds += rate.seconds;
    }
  }
  return all.tokens > 0 ? all.seconds / all.tokens : -1;
}

double StudyProgress::seconds_left(const std::vector<RunningChild>& children) const {
  struct RunsOfKind {
    double sum = 0, longest = 0;
    std::size_t runs = 0;
  };
  std::array<RunsOfKind, 2> kinds;  // shared runs, then arms
  for (const auto& [name, run] : runs_) {
    if (run.is_done) continue;
    const double rate = seconds_of_token(*run.config);
    if (rate < 0) return -1;
    std::int64_t step = 0;
    for (const RunningChild& child : children) {
      const std::optional<RunStep> at =
          child.task->name == name && child.task->step ? child.task->step->read() : std::nullopt;
      if (at) step = at->step;
    }
    const double seconds = rate * (all_tokens(*run.config) - tokens_of(*run.config, step));
    RunsOfKind& kind = kinds[run.is_shared ? 0 : 1];
    kind.sum += seconds;
    kind.longest = std::max(kind.longest, seconds);
    ++kind.runs;
  }
  double left = 0;
  for (const RunsOfKind& kind : kinds) {
    if (kind.runs == 0) continue;
    const auto at_once = static_cast<double>(std::min(jobs_, kind.runs));
    left += std::max(kind.sum / at_once, kind.longest);
  }
  return left;
}

std::string StudyProgress::line(const std::vector<RunningChild>& children) {
  std::string text;
  for (const RunningChild& child : children) {
    const std::string& name = child.task->name;
    const std::optional<RunStep> at = child.task->step ? child.task->step->read() : std::nullopt;
    text += (text.empty() ? "" : ", ") + name;
    if (!at) {
      text += " begins";
      continue;
    }
    text += fmt::format(" step {}/{} {} loss {:.4f}", at->step, at->total, at->stage, at->loss);
    const auto found = runs_.find(name);
    if (found == runs_.end()) continue;
    Run& run = found->second;
    run.first = at->first;
    running_[name] = {tokens_of(*run.config, at->step) - tokens_of(*run.config, run.first - 1),
                      child.seconds};
  }
  const double left = seconds_left(children);
  return fmt::format(
      "{}; {} of {} runs done, {}", text, done_, runs_.size(),
      left < 0 ? "time left not known yet" : fmt::format("about {} left", duration(left)));
}

void StudyProgress::watch(const std::vector<RunningChild>& children) {
  if (!say_ || children.empty() || Clock::now() - said_ < std::chrono::seconds(2)) return;
  said_ = Clock::now();
  say_(line(children));
}

}  // namespace fp8lab
