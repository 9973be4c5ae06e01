// Faults of one bit, planted anywhere in a run: are they named, with every coordinate?
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "src/replay/compare_runs.hpp"
#include "src/replay/verify_run.hpp"
#include "src/train/trainer.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/replay/planted_fault.hpp"

using namespace fp8lab;
using fp8lab::test::FaultyBackend;
using fp8lab::test::PlantedFault;

namespace {

constexpr std::int64_t kSteps = 3;

/// Two micro-batches a step; statistics of operands in the first one.
RunConfig tiny_run(const std::string& recipe, const std::string& more = "") {
  const std::string text = "name = \"tiny\"\nrecipe = \"" + recipe + R"("
[model]
vocab_size = 272
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
initializer_range = 0.08
)" + more + R"(
[logging]
nonfinite = "keep_going"
[[stages]]
name = "only"
kind = "pretrain"
steps = 3
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 32
data = {kind = "arithmetic", problems = 60}
learning_rate = {kind = "constant", peak = 1e-2, warmup_steps = 0}
)";
  return parse_run_config(text, "tiny", {});
}

const std::string kGpt2 = R"(norm = "layernorm"
feed_forward = "gelu_tanh"
positions = "learned"
max_position_embeddings = 32
o_bias = true
mlp_bias = true
)";

std::unique_ptr<Backend> healthy() { return make_backend("cpu", 1); }

RecordedRun train(const RunConfig& config, Backend& backend, const std::filesystem::path& folder) {
  TrainerOptions options;
  options.directory = folder;
  Trainer(config, backend, options).run();
  return open_recorded_run(folder);
}

ReplaySource source_of(const RecordedRun& run, std::function<std::unique_ptr<Backend>()> make) {
  return replay_source(run, "cpu", {},
                       [make = std::move(make)](const std::string&) { return make(); });
}

/// Every output of each step of a healthy run.
std::vector<std::vector<TracedOutput>> traces_of(const RecordedRun& run) {
  Replay replay(source_of(run, healthy), {});
  std::vector<std::vector<TracedOutput>> traces;
  while (!replay.is_complete()) {
    replay.prepare();
    TraceObserver trace(replay.hashes(), replay.places());
    replay.step(&trace);
    traces.push_back(trace.take());
  }
  return traces;
}

/// A random step, operation, output, element and bit.
class FaultDraw {
 public:
  FaultDraw(const std::vector<std::vector<TracedOutput>>& traces, std::uint64_t seed)
      : traces_(traces), random_(seed) {}

  PlantedFault draw() {
    for (;;) {
      const std::int64_t step = 1 + number(kSteps);
      const auto& trace = traces_[static_cast<std::size_t>(step - 1)];
      const TracedOutput& output =
          trace[static_cast<std::size_t>(number(static_cast<std::int64_t>(trace.size())))];
      const bool is_measurement = output.kind == "hash_tensor" || output.kind == "measure_operand";
      if (output.kind == "upload" || is_measurement) continue;
      const auto bits = static_cast<std::int64_t>(8 * size_of(output.dtype));
      return {step,
              output.operation,
              output.index,
              number(output.rows),
              number(output.cols),
              std::uint64_t{1} << number(bits)};
    }
  }

 private:
  std::int64_t number(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
  }

  const std::vector<std::vector<TracedOutput>>& traces_;
  std::mt19937_64 random_;
};

const TracedOutput& target_of(const std::vector<std::vector<TracedOutput>>& traces,
                              const PlantedFault& fault) {
  const auto& trace = traces[static_cast<std::size_t>(fault.step - 1)];
  return *std::find_if(trace.begin(), trace.end(), [&](const TracedOutput& output) {
    return output.operation == fault.operation && output.index == fault.output;
  });
}

void check_located(const LocatedDifference& found, const PlantedFault& fault,
                   const TracedOutput& target) {
  REQUIRE(found.where == LocatedDifference::Where::operation);
  CHECK(found.step == fault.step);
  REQUIRE(found.a);
  CHECK(found.a->operation == fault.operation);
  CHECK(found.a->index == fault.output);
  CHECK(found.a->place == target.place);
  CHECK(found.a->kind == target.kind);
  CHECK(found.a->name == target.name);
  REQUIRE(found.element);
  CHECK(found.element->row == fault.row);
  CHECK(found.element->col == fault.col);
  CHECK((found.element->bits_a ^ found.element->bits_b) == fault.mask);
  CHECK(found.element->count == 1);
  if (target.name == "codes") {
    REQUIRE(found.tile);
    CHECK_FALSE(target.part.empty());
  }
  if (found.gemm && found.gemm->parts != GemmElement::Parts::unknown) {
    CHECK(found.gemm->parts == GemmElement::Parts::after_sum);
    CHECK(found.gemm->holds_a);
    CHECK_FALSE(found.gemm->holds_b);
  }
}

/// Plants faults until so many have shown in the files, and looks for each of them.
void find_faults(const RunConfig& config, int wanted, std::uint64_t seed) {
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const RecordedRun good = train(config, *cpu, scratch / "good");
  const auto traces = traces_of(good);
  FaultDraw faults(traces, seed);
  int drawn = 0, gemms = 0;
  for (int found = 0; found < wanted; ++drawn) {
    REQUIRE(drawn < 4 * wanted);
    const PlantedFault fault = faults.draw();
    const TracedOutput& target = target_of(traces, fault);
    CAPTURE(fault.step, fault.operation, fault.row, fault.col, fault.mask);
    CAPTURE(target.kind, target.name, target.part, target.place.layer, target.place.gemm);
    FaultyBackend faulty(fault);
    const std::filesystem::path folder = scratch / "bad";
    const RecordedRun bad = train(config, faulty, folder);
    const FileComparison files = compare_files(good, bad);
    CHECK(files.made_of.empty());
    const auto make_faulty = [&] { return std::make_unique<FaultyBackend>(fault); };
    // A bit that no later one depends on is in no file.
    if (files.first.step >= 0) {
      CHECK(files.first.step >= fault.step);
      const ExecutedAgain again =
          locate_difference(source_of(good, healthy), source_of(bad, make_faulty),
                            common_start(good, bad, files.first.step), files.first.step);
      check_located(again.difference, fault, target);
      CHECK(compare_with_file(good, again.a).difference.step == -1);
      CHECK(compare_with_file(bad, again.b).difference.step == -1);
      gemms += again.difference.gemm ? 1 : 0;
      ++found;
    }
    std::filesystem::remove_all(folder);
  }
  CHECK(gemms > 0);
}

}  // namespace

TEST_CASE("a transient fault is named to its step") {
  const RunConfig config = tiny_run("infir2");
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const RecordedRun good = train(config, *cpu, scratch / "good");
  const auto traces = traces_of(good);
  FaultDraw faults(traces, 5);
  int late = 0;
  for (int found = 0; found < 20;) {
    const PlantedFault fault = faults.draw();
    const TracedOutput& target = target_of(traces, fault);
    CAPTURE(fault.step, target.kind, target.name, target.place.layer);
    FaultyBackend faulty(fault);
    const RecordedRun bad = train(config, faulty, scratch / "bad");
    const std::int64_t shows = compare_files(good, bad).first.step;
    if (shows > 0) {
      const ReplaySource a = source_of(good, healthy), b = source_of(bad, healthy);
      const ExecutedAgain again = locate_difference(a, b, common_start(good, bad, shows), shows);
      CHECK(again.difference.where == LocatedDifference::Where::nowhere);
      CHECK(compare_with_file(good, again.a).difference.step == -1);
      CHECK(compare_with_file(bad, again.b).difference.step == shows);
      // What a step leaves to the next one alone shows there.
      const bool is_left = target.place.phase == Phase::update;
      CHECK((shows == fault.step || (is_left && shows == fault.step + 1)));
      late += shows != fault.step ? 1 : 0;
      CHECK(verify_run(bad, b, {}, {}).difference.step == shows);
      ++found;
    }
    std::filesystem::remove_all(scratch / "bad");
  }
  CHECK(late < 20);
}

TEST_CASE("a run is executed again from its checkpoint") {
  RunConfig config = tiny_run("te_delayed");
  config.logging.checkpoint_every_steps = 2;
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  TrainerOptions options;
  options.directory = scratch / "run";
  // Killed in the third step, after the checkpoint of the second.
  std::atomic<bool> stop = false;
  options.stop = &stop;
  options.progress = [&](const Progress& progress) { stop = progress.step == 2; };
  Trainer(config, *cpu, options).run();
  const RecordedRun stopped = open_recorded_run(scratch / "run");
  CHECK(latest_start(stopped, 1).checkpoint.empty());
  CHECK(latest_start(stopped, 2).position.step == 2);
  const ReplaySource source = source_of(stopped, healthy);
  const Verification whole = verify_run(stopped, source, {}, {});
  CHECK(whole.difference.step == -1);
  CHECK(whole.compared == 2);
  CHECK(whole.hashed == 2);
  CHECK(verify_run(stopped, source, 1, 1).executed == 2);
  CHECK_THROWS_WITH(verify_run(stopped, source, 2, {}), Catch::Contains("ends after step 2"));
  CHECK_THROWS_WITH(verify_run(stopped, source, {}, 3), Catch::Contains("more than it has"));

  // Rows that follow the checkpoint, as a kill leaves them.
  const RecordedRun complete = train(config, *cpu, scratch / "complete");
  RecordedRun killed = stopped;
  killed.data.metrics = complete.data.metrics;
  const Verification rest = verify_run(killed, source, {}, {});
  CHECK(rest.start.position.step == 2);
  CHECK(rest.executed == 1);
  CHECK(rest.difference.step == -1);
  killed.data.metrics.back().weight_hash ^= 1;
  const Verification wrong = verify_run(killed, source, {}, {});
  CHECK(wrong.difference.step == 3);
  CHECK(wrong.difference.what == "weights");

  // A fault after the checkpoint is looked for from there.
  const auto traces = traces_of(complete);
  FaultDraw faults(traces, 6);
  PlantedFault fault = faults.draw();
  while (fault.step != 3 || target_of(traces, fault).place.gemm.empty()) fault = faults.draw();
  const auto faulty = [&] { return std::make_unique<FaultyBackend>(fault); };
  const StartPoint start = common_start(killed, complete, 3);
  CHECK(start.position.step == 2);
  const ExecutedAgain again =
      locate_difference(source_of(complete, healthy), source_of(killed, faulty), start, 3);
  CHECK(again.a.size() == 1);
  check_located(again.difference, fault, target_of(traces, fault));
}

TEST_CASE("what a run is made of is checked before it is executed again") {
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const RecordedRun run = train(tiny_run("bf16"), *cpu, scratch / "run");
  ReplaySource source = source_of(run, healthy);
  source.config = tiny_run("infir2");
  CHECK_THROWS_WITH(verify_run(run, source, {}, {}), Catch::Contains("recipe of stage only"));
  CHECK_THROWS_WITH(open_recorded_run(scratch / "nothing"), Catch::Contains("no run file"));
}

TEST_CASE("runs of different accumulators part in a sum, at a product of K") {
  const ScratchDirectory scratch;
  const auto with_schedule = [&](const std::string& schedule) {
    const std::filesystem::path file = scratch / (schedule + ".toml");
    std::string text = load_recipe("e4m3_tensor").text;
    const std::string before = "schedule = \"promote:128\"";
    REQUIRE(text.find(before) != std::string::npos);
    text.replace(text.find(before), before.size(), "schedule = \"" + schedule + "\"");
    std::ofstream(file) << text;
    return tiny_run(file.string());
  };
  const auto cpu = healthy();
  const RecordedRun a = train(with_schedule("fast"), *cpu, scratch / "a");
  const RecordedRun b = train(with_schedule("promote:32"), *cpu, scratch / "b");
  const FileComparison files = compare_files(a, b);
  REQUIRE(files.first.step == 1);
  CHECK_FALSE(files.made_of.empty());
  const LocatedDifference found =
      locate_difference(source_of(a, healthy), source_of(b, healthy), {}, 1).difference;
  REQUIRE(found.where == LocatedDifference::Where::operation);
  // The schedules of fprop are the same, and mlp.down has no more than 32 outputs.
  CHECK(found.a->place.layer == "layers.1.mlp.gate_up");
  CHECK(found.a->place.gemm == "dgrad");
  CHECK(found.a->place.phase == Phase::backward);
  REQUIRE(found.gemm);
  CHECK(found.gemm->parts == GemmElement::Parts::sum);
  CHECK(found.gemm->k_begin == 32);
  CHECK(found.gemm->k_end == 64);
  CHECK(found.gemm->sum_a != found.gemm->sum_b);
}

TEST_CASE("other weights, another rate and other operations are told apart") {
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const RecordedRun base = train(tiny_run("bf16"), *cpu, scratch / "base");
  const auto located = [&](RunConfig config) {
    config = parse_run_config(to_toml(config), "changed", {});
    const RecordedRun run = train(config, *cpu, scratch / "other");
    const FileComparison files = compare_files(base, run);
    CHECK_FALSE(files.made_of.empty());
    const LocatedDifference found =
        locate_difference(source_of(base, healthy), source_of(run, healthy),
                          common_start(base, run, files.first.step), files.first.step)
            .difference;
    std::filesystem::remove_all(scratch / "other");
    return found;
  };
  RunConfig seed = tiny_run("bf16");
  seed.seed = 2;
  const LocatedDifference weights = located(seed);
  CHECK(weights.where == LocatedDifference::Where::state);
  CHECK(weights.step == 1);
  CHECK(weights.state == "weight/embed.weight");
  REQUIRE(weights.element);

  RunConfig rate = tiny_run("bf16");
  rate.stages[0].learning_rate.peak = 2e-2;
  const LocatedDifference scalars = located(rate);
  CHECK(scalars.where == LocatedDifference::Where::operation);
  CHECK(scalars.a->name == "step scalars");
  CHECK(scalars.element->col == StepScalar::kLearningRate);

  const LocatedDifference order = located(tiny_run("infir2"));
  CHECK(order.where == LocatedDifference::Where::order);
  REQUIRE(order.a);
  REQUIRE(order.b);
  CHECK(order.a->kind != order.b->kind);

  RunConfig moments = tiny_run("bf16");
  moments.optimizer.adamw.beta2 = 0.9f;
  const LocatedDifference update = located(moments);
  CHECK(update.where == LocatedDifference::Where::operation);
  CHECK(update.a->place.phase == Phase::update);
  CHECK(update.step == 1);
}

TEST_CASE("planted faults are found with every coordinate") {
  SECTION("infir2") { find_faults(tiny_run("infir2"), 40, 1); }
  SECTION("te_delayed") { find_faults(tiny_run("te_delayed"), 25, 2); }
  SECTION("bf16") { find_faults(tiny_run("bf16", kGpt2), 25, 3); }
  SECTION("halo2_fp8") { find_faults(tiny_run("halo2_fp8"), 10, 4); }
}
