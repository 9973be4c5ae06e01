#include "src/bench/train.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

#include "emulation/recording/observed_backend.hpp"
#include "src/bench/bell_values.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/plan/time_plan.hpp"
#include "src/train/step/standalone_step.hpp"

namespace fp8lab {
namespace {

constexpr int kWarmUps = 2;

double seconds_of(const std::function<void()>& action) {
  const auto began = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Returns the minimum time in seconds of `repeats` runs of an enqueued action,
/// each of which is waited for.
double least_seconds(Backend& backend, int repeats, const std::function<void()>& action) {
  double least = 0;
  for (int i = 0; i <= repeats; ++i) {
    const double seconds = seconds_of([&] {
      action();
      backend.synchronize();
    });
    if (i == 1 || (i > 1 && seconds < least)) least = seconds;
  }
  return least;
}

/// Returns a square BF16 matrix of bell-shaped values.
TensorView bell_matrix(Backend& backend, std::int64_t size) {
  const TensorView matrix = backend.allocate(DType::bf16, size, size);
  backend.upload(matrix, bell_values(size * size).data());
  return matrix;
}

double bf16_product_bound(Backend& backend, int repeats) {
  const std::size_t mark = backend.memory_mark();
  const std::int64_t size = backend.is_on_host() ? 512 : 8192;
  QuantizedOperand a = QuantizedOperand::without_memory({}, size, size);
  QuantizedOperand b = a;
  a.codes = bell_matrix(backend, size);
  b.codes = bell_matrix(backend, size);
  b.is_right = true;
  const GemmSpec spec;
  const ops::Gemm gemm{
      .spec = spec, .a = a, .b = b, .bias = {}, .d = backend.allocate(DType::bf16, size, size)};
  const double seconds = least_seconds(backend, repeats, [&] { backend.run(gemm); });
  backend.release_to(mark);
  return gemm.work() / seconds;
}

double bf16_copy_bound(Backend& backend, int repeats) {
  const std::size_t mark = backend.memory_mark();
  const std::int64_t size = backend.is_on_host() ? 4096 : 16384;
  const ops::Copy copy{backend.allocate(DType::bf16, size, size),
                       backend.allocate(DType::bf16, size, size)};
  const double seconds = least_seconds(backend, repeats, [&] { backend.run(copy); });
  backend.release_to(mark);
  return copy.work() / seconds;
}

bool multiplies(WorkClass work_class) {
  return work_class == WorkClass::gemm || work_class == WorkClass::attention;
}

/// The micro-batches of a step.
std::vector<Batch> random_batches(const RunConfig& config, const StageConfig& stage) {
  const auto count = static_cast<std::size_t>(stage.batch_sequences / stage.micro_batch_sequences);
  return {count, random_batch(stage, config.model.vocab_size)};
}

void time_steps(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                Backend& backend, int repeats, TrainBench& bench) {
  const std::size_t mark = backend.memory_mark();
  {
    StandaloneStep work(backend, config, stage, recipe);
    fill_with_noise(work.memory.parameters);
    bench.parameters = work.memory.parameters.declaration().weights();
    const std::vector<Batch> batches = random_batches(config, stage);
    const auto time = [&](StepTiming& timing, bool hash, bool statistics, bool counts) {
      const double seconds = seconds_of([&] {
        work.take(batches, config.optimizer.update, statistics);
        work.step().results(hash, statistics);
      });
      if (counts) timing.seconds.push_back(seconds);
    };
    bench.steps = {
        {"step", {}}, {"with a hash of the weights", {}}, {"with statistics and hash", {}}};
    // Alternates between the ways, so that a warming device affects each equally.
    for (int i = 0; i < repeats + kWarmUps; ++i) {
      const bool counts = i >= kWarmUps;
      time(bench.steps[0], false, false, counts);
      time(bench.steps[1], true, false, counts);
      time(bench.steps[2], true, true, counts);
    }
  }
  backend.release_to(mark);
}

/// Waits where a phase begins, and adds up the seconds of each.
class PhaseClock final : public OperationObserver {
 public:
  explicit PhaseClock(Backend& backend) : backend_(backend) {}

  void begin() {
    seconds_.clear();
    phase_ = Phase::load;
    began_ = std::chrono::steady_clock::now();
  }
  void before(const AnyOperation&, const Label& label) override {
    if (label.phase != phase_) end_phase();
    phase_ = label.phase;
  }
  /// Ends the last phase, and returns the seconds of all.
  const std::map<Phase, double>& end() {
    end_phase();
    return seconds_;
  }

 private:
  void end_phase() {
    backend_.synchronize();
    const auto now = std::chrono::steady_clock::now();
    seconds_[phase_] += std::chrono::duration<double>(now - began_).count();
    began_ = now;
  }

  Backend& backend_;
  Phase phase_ = Phase::load;
  std::chrono::steady_clock::time_point began_;
  std::map<Phase, double> seconds_;
};

void time_phases(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                 Backend& backend, int repeats, TrainBench& bench) {
  const std::size_t mark = backend.memory_mark();
  {
    ObservedBackend observed(backend);
    StandaloneStep work(observed, config, stage, recipe);
    fill_with_noise(work.memory.parameters);
    PhaseClock clock(backend);
    observed.observe(&clock);
    const std::vector<Batch> batches = random_batches(config, stage);
    std::map<Phase, PhaseTiming> phases;
    for (int i = 0; i < repeats + kWarmUps; ++i) {
      clock.begin();
      work.take(batches, config.optimizer.update);
      for (const auto& [phase, seconds] : clock.end()) {
        if (i < kWarmUps) continue;
        phases[phase].phase = phase;
        phases[phase].seconds.push_back(seconds);
      }
    }
    for (const auto& [phase, timing] : phases) bench.phases.push_back(timing);
  }
  backend.release_to(mark);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

double StepTiming::median() const { return median_of(seconds); }

double PhaseTiming::median() const { return median_of(seconds); }

TrainBench bench_train(const RunConfig& config, Backend& backend, int repeats) {
  const StageConfig& stage = config.stages.front();
  const Recipe recipe = load_recipe(recipes_of(config, stage).front().name);
  TrainBench bench;
  bench.tokens = stage.batch_sequences * stage.sequence_length;
  RunConfig plain = config;  // hashes are timed separately
  plain.logging.hash_every_step = false;
  for (const auto& [key, kind] : record_step(plain, stage, recipe, backend)) {
    if (multiplies(kind.work_class)) bench.multiply_adds += kind.work;
  }
  validate_stage(config, stage, recipe, backend);
  bench.planned_bytes = plan_memory(config, stage, recipe, backend).total();
  bench.product_bound = bf16_product_bound(backend, repeats);
  bench.copy_bound = bf16_copy_bound(backend, repeats);
  time_steps(config, stage, recipe, backend, repeats, bench);
  time_phases(plain, stage, recipe, backend, repeats, bench);
  for (const auto& [key, kind] : time_step(plain, stage, recipe, backend).mean) {
    const double rate = kind.seconds > 0 ? kind.work / kind.seconds : 0;
    const double bound = multiplies(kind.work_class) ? bench.product_bound : bench.copy_bound;
    bench.kinds.push_back({key, kind.work_class, kind.calls, kind.seconds, rate, rate / bound});
  }
  std::sort(bench.kinds.begin(), bench.kinds.end(),
            [](const KindTiming& a, const KindTiming& b) { return a.seconds > b.seconds; });
  return bench;
}

}  // namespace fp8lab
