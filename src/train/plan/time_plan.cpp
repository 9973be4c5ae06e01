#include "src/train/plan/time_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "emulation/recording/recording_backend.hpp"
#include "emulation/recording/timing_backend.hpp"
#include "src/architecture/parts.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/io/hash.hpp"
#include "src/train/step/standalone_step.hpp"

namespace fp8lab {
namespace {

constexpr double kLongEnough = 0.1;  // seconds of a step
constexpr double kSettled = 0.7;     // ratio of the estimates of a size and its half
constexpr double kGrows = 2;         // times that a step takes beside half the size
constexpr double kPatience = 8;      // seconds after which rates need not have settled
constexpr double kMostGrowth = 8;    // times that a size takes beside its half, at most
constexpr double kSizes = 8;         // sizes among which a limited time is divided
constexpr int kRepeats = 3;
constexpr int kMostRepeats = 100;
constexpr std::int64_t kSmallest = 32;
constexpr std::int64_t kStartSize = 512;  // extent of the model whose start is timed
constexpr std::size_t kCopied = std::size_t{1} << 25;
constexpr std::int64_t kLayers = 3;  // first, middle and last layer

/// Enqueues a step with the measurements that its run makes at every step.
void take(StandaloneStep& step, const RunConfig& config, std::span<const Batch> batches,
          bool statistics) {
  step.take(batches, config.optimizer.update, statistics);
  if (config.logging.hash_every_step) step.memory.parameters.enqueue_hash();
}

/// Returns a batch of the right shape without values, for a recording.
Batch unread_batch(const StageConfig& stage) {
  Batch batch(stage.micro_batch_sequences, stage.sequence_length,
              make_objective(stage.objective)->own_columns());
  batch.trained_tokens = batch.sequences * batch.sequence_length;
  return batch;
}

/// Returns the work of `take` for `count` micro-batches of each of `shards` shards. All
/// micro-batches of a shard after the first add the same work.
template <class Take>
WorkLog log_of_batches(RecordingBackend& recording, const StageConfig& stage, std::int64_t count,
                       std::int64_t shards, const Take& take) {
  const std::vector<Batch> batches(static_cast<std::size_t>(2 * shards), unread_batch(stage));
  const auto log_of = [&](std::int64_t of_shard) {
    recording.clear_log();
    take(std::span(batches).first(static_cast<std::size_t>(of_shard * shards)));
    return recording.log();
  };
  const WorkLog one = log_of(1);
  if (count == 1) return one;
  WorkLog log = log_of(2);
  for (auto& [key, kind] : log) {
    const WorkOfKind& first = one.at(key);
    kind.calls = first.calls + (count - 1) * (kind.calls - first.calls);
    kind.work = first.work + static_cast<double>(count - 1) * (kind.work - first.work);
  }
  return log;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Rate {
  double work = 0, seconds = 0;

  void add(const WorkOfKind& kind) {
    work += kind.work;
    seconds += kind.seconds;
  }
};

/// Returns the seconds for a unit of work, from the nearest kinds that were timed; 0 if none is
/// similar.
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

/// Returns the largest extent that scaled_run() limits.
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
  run.memory.loss_chunk = 0;  // chunks run the same kinds of operations
  run.parallel.shards = 1;    // additions of shards are elementwise like others
  ModelConfig& model = run.model;
  const std::int64_t group = model.num_attention_heads / model.num_key_value_heads;
  if (model.layer_count() > kLayers) {
    model.set_layer_count(kLayers);
    // Names may match layers that were removed; replacing every source takes longest.
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
                    const Backend& backend, bool statistics) {
  RecordingBackend recording(backend);
  StandaloneStep step(recording, config, stage, recipe);
  return log_of_batches(
      recording, stage,
      stage.batch_sequences / stage.micro_batch_sequences / config.parallel.shards,
      config.parallel.shards,
      [&](std::span<const Batch> batches) { take(step, config, batches, statistics); });
}

void observe_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  const Backend& backend, OperationObserver& observer) {
  RecordingBackend recording(backend);
  ObservedBackend observed(recording);
  StandaloneStep step(observed, config, stage, recipe);
  observed.observe(&observer);
  const std::vector<Batch> batches(static_cast<std::size_t>(config.parallel.shards),
                                   unread_batch(stage));
  take(step, config, batches, false);
}

WorkLog record_held_out(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                        const Backend& backend) {
  if (!stage.eval) return {};
  RecordingBackend recording(backend);
  StandaloneStep step(recording, config, stage, recipe);
  const std::int64_t together = stage.micro_batch_sequences;
  return log_of_batches(recording, stage, (stage.eval->sequences + together - 1) / together, 1,
                        [&](std::span<const Batch> batches) { step.take_losses(batches); });
}

TimedStep time_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    Backend& backend, bool statistics, double seconds) {
  const std::size_t mark = backend.memory_mark();
  const std::unique_ptr<Backend> own = backend_with_exact_sources(config, backend);
  TimingBackend timing(own ? *own : backend);
  {
    StandaloneStep step(timing, config, stage, recipe);
    fill_with_noise(step.memory.parameters);
    const std::vector<Batch> batches(static_cast<std::size_t>(config.parallel.shards),
                                     random_batch(stage, config.model.vocab_size));
    take(step, config, batches, statistics);
    TimedStep timed;
    int steps = 0;
    for (; steps < kRepeats || (steps < kMostRepeats && seconds_of(timed.mean) < seconds);
         ++steps) {
      timing.clear_log();
      take(step, config, batches, statistics);
      if (steps == 0) timed.mean = timed.least = timing.log();
      for (const auto& [key, kind] : timing.log()) {
        if (steps > 0) timed.mean[key].seconds += kind.seconds;
        double& least = timed.least[key].seconds;
        least = std::min(least, kind.seconds);
      }
    }
    for (auto& [key, kind] : timed.mean) kind.seconds /= steps;
    backend.release_to(mark);
    return timed;
  }
}

TimePlan estimate(const WorkLog& step, const WorkLog& timed) {
  TimePlan plan;
  for (const auto& [key, kind] : step) {
    plan.seconds[static_cast<std::size_t>(kind.work_class)] +=
        kind.work * seconds_of_unit(key, kind, timed);
  }
  return plan;
}

void SizeGrowth::add(double seconds, double estimated) {
  const bool is_alike = estimated >= kSettled * estimated_ && estimated_ >= kSettled * estimated;
  if (estimated_ > 0 && seconds >= kGrows * seconds_ && is_alike) settled_ = true;
  seconds_ = seconds;
  estimated_ = estimated;
}

double seconds_of_next_size(double took, double half_took) {
  return half_took > 0 ? std::min(2.0 * took / half_took, kMostGrowth) * took : 0.0;
}

StageTime plan_time(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    Backend& backend, double within) {
  const auto began = std::chrono::steady_clock::now();
  const double timed_long = std::min(kTimedLong, within / kSizes);
  const WorkLog step = record_step(config, stage, recipe, backend);
  const std::int64_t largest = largest_extent(config.model, stage);
  SizeGrowth growth;
  double half_took = 0;
  for (std::int64_t size = kSmallest;; size *= 2) {
    const bool whole = size >= largest;
    const RunConfig run = scaled_run(config, stage, size);
    const StageConfig& scaled = run.stages.front();
    try {
      record_step(run, scaled, recipe, backend);
    } catch (const Error&) {
      if (whole) throw;
      continue;  // a transform or a range of K needs a larger size
    }
    const auto size_began = std::chrono::steady_clock::now();
    TimedStep timed = time_step(run, scaled, recipe, backend, false, timed_long);
    const double took = seconds_since(size_began);
    const bool is_late = seconds_since(began) + seconds_of_next_size(took, half_took) > within;
    half_took = took;
    const double took_fastest = seconds_of(timed.least);
    growth.add(took_fastest, estimate(step, timed.least).total());
    const bool settled = growth.has_settled() || seconds_since(began) > kPatience;
    if (!whole && !is_late && !(settled && took_fastest >= kLongEnough)) continue;
    StageTime time{estimate(step, timed.mean)};
    time.held_out = estimate(record_held_out(config, stage, recipe, backend), timed.mean).total();
    const bool is_quantized = recipe.linear.slot(Slot::fprop_x).is_cast() ||
                              recipe.linear.slot(Slot::fprop_w).is_cast() ||
                              recipe.attention.quantizes_forward();
    if (stage.eval && stage.eval->weights_in_bf16 && is_quantized) time.in_bf16 = time.held_out;
    if (config.logging.statistics_every_steps > 0) {
      timed.mean.merge(time_step(run, scaled, recipe, backend, true, timed_long).mean);
      time.with_statistics =
          estimate(record_step(config, stage, recipe, backend, true), timed.mean).total();
    }
    return time;
  }
}

double plan_start(const RunConfig& config, Backend& backend) {
  const RunConfig small = scaled_run(config, config.stages.front(), kStartSize);
  const std::size_t mark = backend.memory_mark();
  const auto begin = std::chrono::steady_clock::now();
  double share = 0;
  {
    RunMemory memory(backend, small, load_recipe(config.recipe, config.recorded));
    memory.parameters.initialize(config.seed);
    memory.parameters.round_weights(config.seed);
    memory.parameters.hash();
    share = static_cast<double>(declaration_of(config.model).weights()) /
            static_cast<double>(memory.parameters.declaration().weights());
  }
  backend.release_to(mark);
  return share * seconds_since(begin);
}

double plan_checkpoint(std::int64_t bytes) {
  std::vector<std::byte> state(kCopied, std::byte{1});
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::byte> copied = state;
  const std::vector<std::byte> written = copied;
  const std::uint64_t hash = xxh3(written.data(), written.size());
  const double seconds = seconds_since(begin);
  return hash == 0 ? 0.0 : seconds * static_cast<double>(bytes) / static_cast<double>(kCopied);
}

}  // namespace fp8lab
