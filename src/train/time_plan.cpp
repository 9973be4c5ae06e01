#include "src/train/time_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "emulation/recording/recording_backend.hpp"
#include "emulation/recording/timing_backend.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/train/step_at_work.hpp"

namespace fp8lab {
namespace {

constexpr double kLongEnough = 0.1;  // seconds of a step
constexpr double kSettled = 0.7;     // of the estimate by half the size
constexpr int kRepeats = 3;
constexpr std::int64_t kSmallest = 32;
constexpr std::int64_t kLayers = 3;  // the first, one between, and the last

/// A batch of the right shape for a backend that reads no values.
Batch unread_batch(const StageConfig& stage) {
  Batch batch;
  batch.sequences = stage.micro_batch_sequences;
  batch.sequence_length = stage.sequence_length;
  batch.trained_tokens = batch.sequences * batch.sequence_length;
  return batch;
}

struct Rate {
  double work = 0, seconds = 0;

  void add(const WorkOfKind& kind) {
    work += kind.work;
    seconds += kind.seconds;
  }
};

/// Seconds a unit of work, from the nearest kinds that were timed; 0 where nothing comes near.
double seconds_of_unit(const std::string& key, const WorkOfKind& kind, const WorkLog& timed) {
  Rate of_kind, of_name, of_class;
  for (const auto& [other_key, other] : timed) {
    if (other.work_class != kind.work_class) continue;
    of_class.add(other);
    if (other.name == kind.name) of_name.add(other);
    if (other_key == key) of_kind.add(other);
  }
  for (const Rate& rate : {of_kind, of_name, of_class}) {
    if (rate.work > 0) return rate.seconds / rate.work;
  }
  return 0;
}

double seconds_of(const WorkLog& log) {
  return std::accumulate(log.begin(), log.end(), 0.0,
                         [](double sum, const auto& entry) { return sum + entry.second.seconds; });
}

/// The largest extent that scaled_run() bounds.
std::int64_t largest_extent(const ModelConfig& model, const StageConfig& stage) {
  return std::max({model.hidden_size, model.intermediate_size, model.vocab_size,
                   model.num_attention_heads * model.head_dim,
                   stage.micro_batch_sequences * stage.sequence_length});
}

}  // namespace

double TimePlan::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

std::string describe(const TimePlan& plan) {
  std::vector<std::string> parts;
  for (const WorkClass work_class : kWorkClasses) {
    if (plan.of(work_class) == 0) continue;
    parts.push_back(fmt::format("{} {:.3g}", name_of(work_class), plan.of(work_class)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

RunConfig scaled_run(const RunConfig& config, const StageConfig& stage, std::int64_t size) {
  RunConfig run = config;
  run.memory.loss_chunk = 0;  // operations of a chunk are of the same kinds
  ModelConfig& model = run.model;
  const std::int64_t group = model.num_attention_heads / model.num_key_value_heads;
  if (model.num_hidden_layers > kLayers) {
    model.num_hidden_layers = kLayers;
    // Names may be of layers that are gone; every source is what takes longest.
    if (!run.exact.empty()) run.exact = {"all"};
  }
  model.hidden_size = std::min(size, model.hidden_size);
  model.intermediate_size = std::min(size, model.intermediate_size);
  model.vocab_size = std::min(size, model.vocab_size);
  model.num_key_value_heads =
      std::clamp<std::int64_t>(size / (group * model.head_dim), 1, model.num_key_value_heads);
  model.num_attention_heads = group * model.num_key_value_heads;
  StageConfig scaled = stage;
  scaled.sequence_length = std::min(size, stage.sequence_length);
  scaled.micro_batch_sequences =
      std::clamp<std::int64_t>(size / scaled.sequence_length, 1, stage.micro_batch_sequences);
  scaled.batch_sequences = scaled.micro_batch_sequences;
  run.stages = {scaled};
  return run;
}

WorkLog record_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend) {
  RecordingBackend recording(backend);
  StepAtWork step(recording, config, stage, recipe);
  const std::vector<Batch> batches(2, unread_batch(stage));
  const auto log_of = [&](std::size_t count) {
    recording.clear_log();
    step.take(std::span(batches).first(count), config.optimizer.update);
    return recording.log();
  };
  const WorkLog one = log_of(1);
  const std::int64_t added = stage.batch_sequences / stage.micro_batch_sequences - 1;
  if (added == 0) return one;
  // Every micro-batch after the first adds the same.
  WorkLog log = log_of(2);
  for (auto& [key, kind] : log) {
    const WorkOfKind& first = one.at(key);
    kind.calls = first.calls + added * (kind.calls - first.calls);
    kind.work = first.work + static_cast<double>(added) * (kind.work - first.work);
  }
  return log;
}

WorkLog time_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  Backend& backend) {
  const std::size_t mark = backend.memory_mark();
  const std::unique_ptr<Backend> own = backend_with_exact_sources(config, backend);
  TimingBackend timing(own ? *own : backend);
  WorkLog log;
  {
    StepAtWork step(timing, config, stage, recipe);
    fill_with_noise(step.memory.parameters);
    const std::vector<Batch> batches(1, random_batch(stage, config.model.vocab_size));
    step.take(batches, config.optimizer.update);
    for (int i = 0; i < kRepeats; ++i) {
      timing.clear_log();
      step.take(batches, config.optimizer.update);
      if (log.empty()) log = timing.log();
      for (auto& [key, kind] : log) {
        kind.seconds = std::min(kind.seconds, timing.log().at(key).seconds);
      }
    }
  }
  backend.release_to(mark);
  return log;
}

TimePlan estimate(const WorkLog& step, const WorkLog& timed) {
  TimePlan plan;
  for (const auto& [key, kind] : step) {
    plan.seconds[static_cast<std::size_t>(kind.work_class)] +=
        kind.work * seconds_of_unit(key, kind, timed);
  }
  return plan;
}

TimePlan plan_time(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                   Backend& backend) {
  const WorkLog step = record_step(config, stage, recipe, backend);
  const std::int64_t largest = largest_extent(config.model, stage);
  TimePlan before;
  for (std::int64_t size = kSmallest;; size *= 2) {
    const bool whole = size >= largest;
    const RunConfig run = scaled_run(config, stage, size);
    const StageConfig& scaled = run.stages.front();
    try {
      record_step(run, scaled, recipe, backend);
    } catch (const Error&) {
      if (whole) throw;
      continue;  // a transform or a range of K wants longer vectors
    }
    const WorkLog timed = time_step(run, scaled, recipe, backend);
    // What an operation costs whatever its size, and more so beside other programs, fades as sizes
    // grow: rates count when a size twice as large gives nearly the same.
    const TimePlan plan = estimate(step, timed);
    const bool settled = plan.total() >= kSettled * before.total() && before.total() > 0;
    if (whole || (settled && seconds_of(timed) >= kLongEnough)) return plan;
    before = plan;
  }
}

}  // namespace fp8lab
