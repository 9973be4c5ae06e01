#include "src/train/watch/run_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/config/recipe/stage_recipes.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/train/run_ending.hpp"

namespace fp8lab {
namespace {

bool is_finite(const StepRecord& record) {
  return std::isfinite(record.loss) && std::isfinite(record.grad_norm);
}

std::vector<WatchedOperand> watched_operands(const Execution& execution, const Recipe& recipe) {
  const Parameters& parameters = execution.parameters();
  std::vector<WatchedOperand> operands;
  const auto layers = static_cast<int>(parameters.model().layer_count());
  for (const LinearDeclaration& layer : parameters.declaration().linears()) {
    const LinearRecipe& linear = recipe.for_layer(layer.name, layers);
    for (const Slot slot : kSlots) operands.push_back(watched_operand(slot, linear.slot(slot)));
  }
  for (const LoggedActivation& activation : execution.logged_activations()) {
    operands.push_back(watched_activation(logged_spec(recipe, activation, {})));
  }
  return operands;
}

/// Reads the statistics of one row of /tensors that detectors use.
struct RecordedStatistics {
  explicit RecordedStatistics(const std::filesystem::path& file)
      : amax(read_statistic(file, "amax")),
        ratio(read_statistic(file, "channel_outlier_ratio")),
        kurtosis(read_statistic(file, "kurtosis")),
        scale(read_statistic(file, "scale_max")),
        nonfinite(read_statistic(file, "nonfinite_count")),
        without_history(read_without_history(file)) {}

  std::vector<OperandStatistics> row(std::size_t index, std::size_t operands) const {
    std::vector<OperandStatistics> statistics(operands);
    for (std::size_t i = 0; i < operands; ++i) {
      const std::size_t at = index * operands + i;
      statistics[i].amax = amax[at];
      statistics[i].channel_outlier_ratio = ratio[at];
      statistics[i].kurtosis = kurtosis[at];
      statistics[i].scale_max = scale[at];
      statistics[i].nonfinite_count = nonfinite[at];
    }
    return statistics;
  }
  std::vector<std::uint8_t> flags(std::size_t index, std::size_t operands) const {
    const auto first = without_history.begin() + static_cast<std::ptrdiff_t>(index * operands);
    return {first, first + static_cast<std::ptrdiff_t>(operands)};
  }

  std::vector<double> amax, ratio, kurtosis, scale, nonfinite;
  std::vector<std::uint8_t> without_history;
};

/// "9.13 deviations, 2 operands".
std::string value_text(const WarningScore& score) {
  switch (score.detector) {
    case Detector::swiglu_alignment:
      return fmt::format(
          "gate and up weights moved {:.3g} of the way from their cosine at the start to 1, {} "
          "channels",
          score.value, score.count);
    case Detector::amax_lag:
      return fmt::format("{:.3g} times the range of the scale, {} operands", score.value,
                         score.count);
    case Detector::gradient_norm: return fmt::format("{:.3g} deviations", score.value);
    case Detector::outlier_channels:
    case Detector::kurtosis:
    case Detector::scale_drift:
      return fmt::format("{:.3g} deviations, {} operands", score.value, score.count);
  }
  return {};
}

}  // namespace

RunWatch::RunWatch(const RunConfig& config, ObservedBackend& backend, Execution& execution)
    : config_(config), backend_(backend), execution_(execution), warnings_(config.warnings) {
  if (execution_.alignment()) start_cosines_ = execution_.alignment()->measure();
}

void RunWatch::begin_recipe(std::int64_t stage, std::size_t recipe) {
  const Recipe& of = execution_.stages()[static_cast<std::size_t>(stage)].recipes[recipe];
  warnings_.begin_stage(watched_operands(execution_, of));
}

void RunWatch::change_recipe() {
  const RunPosition& position = execution_.position();
  begin_recipe(position.stage, static_cast<std::size_t>(position.recipe));
}

void RunWatch::begin_stage(std::int64_t stage) {
  begin_recipe(stage, 0);
  losses_ = {};
  lowest_ = last_ = {};
  announced_.clear();
}

void RunWatch::begin_stage() {
  // A stage that resumes was begun by go_on().
  if (execution_.position().stage_step == 0) begin_stage(execution_.position().stage);
}

void RunWatch::go_on(const std::filesystem::path& run_file, std::int64_t step) {
  if (!config_.warnings.enabled || step == 0) return;
  const RunData run = read_run(run_file);
  const RecordedStatistics recorded(run_file);
  auto metrics = run.metrics.begin();
  std::size_t logged = 0;
  std::int64_t stage = -1, end = 0, begin = 0, tokens = 0;
  std::size_t recipe = 0;
  for (std::int64_t now = 1; now <= step; ++now) {
    if (now > end) {
      begin = end;
      end += config_.stages[static_cast<std::size_t>(++stage)].steps;
      begin_stage(stage);
      recipe = 0;
    }
    const bool fallen = std::any_of(run.events.begin(), run.events.end(), [&](const auto& event) {
      return event.kind == "fallback" && event.step > begin && event.step < now;
    });
    const std::size_t next =
        recipe_of_step(config_.stages[static_cast<std::size_t>(stage)], now - begin, fallen);
    if (next != recipe) begin_recipe(stage, recipe = next);
    if (metrics != run.metrics.end() && metrics->step == now) {
      add_row(*metrics, metrics->tokens > tokens);
      tokens = metrics++->tokens;
    }
    if (logged < run.tensor_steps.size() && run.tensor_steps[logged] == now) {
      warnings_.add_statistics(recorded.row(logged, run.tensors.size()),
                               recorded.flags(logged, run.tensors.size()), {});
      ++logged;
    }
  }
  for (const WarningRecord& row : run.warnings) {
    const std::optional<Detector> detector = detector_of(row.detector);
    if (row.step > step || !detector) continue;
    const WarningScore score{*detector, row.score, row.value, row.tensor, row.channel, row.count};
    if (*detector != Detector::gradient_norm) warnings_.keep(score);
    if (row.step > begin && score.warns()) announced_.push_back(*detector);
  }
}

InspectStep RunWatch::inspection() {
  if (!config_.warnings.enabled) return {};
  return [this](const StepUnderway& step) { inspect(step); };
}

void RunWatch::inspect(const StepUnderway& step) {
  const StepRecord& record = step.record;
  finding_.reset();
  if (!is_finite(record)) {
    if (was_finite_) finding_ = {growth(), find_fault(step, FaultKind::nonfinite)};
    return;
  }
  if (record.step % config_.logging.every_steps != 0 && !step.is_last_of_stage) return;
  std::string what;
  if (losses_.is_start(record.loss)) {
    what = fmt::format("loss {:.4g}, a spike from {:.4g} on", record.loss, losses_.limit());
  } else if (warnings_.is_gradient_spike(record.grad_norm)) {
    what = fmt::format("gradient norm {:.4g}, {:.3g} deviations", record.grad_norm,
                       warnings_.judge_gradient(record.grad_norm)->value);
  } else {
    return;
  }
  finding_ = {what, find_fault(step, FaultKind::growth)};
}

std::optional<StepFault> RunWatch::find_fault(const StepUnderway& step, FaultKind kind) {
  if (config_.logging.statistics_every_steps == 0) return std::nullopt;
  const auto& linears = execution_.transformer().linears();
  std::vector<double> usual;
  for (std::size_t i = 0; i < linears.size() * kSlots.size(); ++i) {
    usual.push_back(warnings_.usual_amax(i));
  }
  FaultFinder finder(backend_, execution_.transformer(), kind, std::move(usual));
  backend_.observe(&finder);
  step.again();
  backend_.observe(nullptr);
  return finder.take();
}

void RunWatch::append_fault(RunLog& log, std::int64_t step, const std::string& kind) const {
  const std::string& what = finding_->what;
  std::string message = what;
  if (finding_->fault) message += (what.empty() ? "" : "; ") + finding_->fault->message;
  log.append(EventRecord{step, kind, message});
  if (!finding_->fault || finding_->fault->sample.empty()) return;
  log.append_sample(step, finding_->fault->sample_name, finding_->fault->sample);
}

bool RunWatch::record_nonfinite(RunLog& log, const StepRecord& record) {
  if (!finding_ || !finding_->fault) return false;
  append_fault(log, record.step, "nan");
  return true;
}

std::string RunWatch::growth() const {
  if (!(last_.loss > lowest_.loss + kDivergenceMargin)) return {};
  return fmt::format("loss growing since step {}: {:.4g} to {:.4g} at step {}", lowest_.step,
                     lowest_.loss, last_.loss, last_.step);
}

void RunWatch::add_row(const StepRecord& record, bool trained) {
  if (!config_.warnings.enabled) return;
  gradient_ = warnings_.add_gradient(record.grad_norm);
  losses_.add(record.loss);
  if (trained && std::isfinite(record.loss)) {
    last_ = record;
    if (lowest_.step == 0 || record.loss < lowest_.loss) lowest_ = record;
  }
  if (trained) was_finite_ = is_finite(record);
}

void RunWatch::record(RunLog& log, const StepTaken& taken) {
  if (!config_.warnings.enabled) return;
  const std::int64_t step = taken.record.step;
  if (finding_ && is_finite(taken.record)) append_fault(log, step, "spike");
  finding_.reset();
  const std::optional<WarningScore> gradient = std::exchange(gradient_, std::nullopt);
  if (!taken.statistics.empty()) {
    const double level = threshold(config_.warnings, Detector::swiglu_alignment);
    const std::vector<Alignment> alignments =
        execution_.alignment()->compare(start_cosines_, level);
    for (const WarningScore& score :
         warnings_.add_statistics(taken.statistics, taken.without_history, alignments)) {
      append(log, step, score);
    }
  } else if (gradient && gradient->warns() && !is_announced(Detector::gradient_norm)) {
    append(log, step, *gradient);
  }
}

bool RunWatch::is_announced(Detector detector) const {
  return std::find(announced_.begin(), announced_.end(), detector) != announced_.end();
}

void RunWatch::append(RunLog& log, std::int64_t step, const WarningScore& score) {
  const std::string name(name_of(score.detector));
  log.append(WarningRecord{step, name, score.score, score.value, score.operand, score.channel,
                           score.count});
  if (!score.warns() || is_announced(score.detector)) return;
  announced_.push_back(score.detector);
  log.append(
      EventRecord{step, "early_warning",
                  fmt::format("{}: {}{}; threshold {:.3g}", name, value_text(score),
                              place_of(score), threshold(config_.warnings, score.detector))});
}

std::string RunWatch::place_of(const WarningScore& score) const {
  if (score.operand < 0) return {};
  const auto operand = static_cast<std::size_t>(score.operand);
  std::string name = execution_.operand_name(operand);
  std::replace(name.begin(), name.end(), ' ', '/');
  const std::string place = ", most in " + name;
  return score.channel < 0 ? place : place + fmt::format(", channel {}", score.channel);
}

}  // namespace fp8lab
