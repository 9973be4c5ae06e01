// Faults of one bit, planted anywhere in a run: are they named, with every coordinate?
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "src/architecture/parts.hpp"
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
    TraceObserver trace(replay.hashes());
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
      if (output.kind == "upload" || is_measurement(output)) continue;
      const auto bits = static_cast<std::int64_t>(8 * size_of(output.dtype));
      PlantedFault fault{step,
                         output.operation,
                         output.index,
                         number(output.rows),
                         number(output.cols),
                         std::uint64_t{1} << number(bits)};
      fault.unmeasured = output.operation;
      fault.name = output.name;
      for (const TracedOutput& before : trace) {
        if (&before == &output) return fault;
        if (is_measurement(before) && before.index == 0) --fault.unmeasured;
        if (before.operation == output.operation && before.name == output.name) ++fault.namesakes;
      }
    }
  }

 private:
  static bool is_measurement(const TracedOutput& output) {
    return output.kind == "hash_tensors" || output.kind.starts_with("measure_");
  }
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
  CHECK(found.a->label == target.label);
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

/// Plants faults until so many have shown in the files, one of them in a product at least, and
/// looks for each of them.
void find_faults(const RunConfig& config, int wanted, std::uint64_t seed) {
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const RecordedRun good = train(config, *cpu, scratch / "good");
  const auto traces = traces_of(good);
  FaultDraw faults(traces, seed);
  int drawn = 0, gemms = 0;
  for (int found = 0; found < wanted || gemms == 0; ++drawn) {
    REQUIRE(drawn < 4 * wanted);
    const PlantedFault fault = faults.draw();
    const TracedOutput& target = target_of(traces, fault);
    CAPTURE(fault.step, fault.operation, fault.row, fault.col, fault.mask);
    CAPTURE(target.kind, target.name, target.part, target.label.layer, target.label.gemm);
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
}

}  // namespace

TEST_CASE("every operation of a step has its label") {
  const bool gpt2 = GENERATE(false, true);
  const RunConfig config = tiny_run("infir2", gpt2 ? kGpt2 : "");
  const ScratchDirectory scratch;
  const auto cpu = healthy();
  const auto trace = traces_of(train(config, *cpu, scratch / "run"))[1];
  const Declaration declaration = declaration_of(config.model);
  const auto count = [&](const auto& wanted) {
    return std::count_if(trace.begin(), trace.end(), wanted);
  };
  constexpr std::int64_t kTokens = 32;
  for (const LinearDeclaration& linear : declaration.linears()) {
    const bool quantized = linear.name != "lm_head";
    for (const GemmRole role : kGemmRoles) {
      const Phase phase = role == GemmRole::fprop ? Phase::forward : Phase::backward;
      const std::int64_t rows = role == GemmRole::wgrad ? linear.out : kTokens;
      const std::int64_t cols = role == GemmRole::fprop ? linear.out : linear.in;
      for (const std::int64_t micro_batch : {0, 1}) {
        INFO(linear.name << " " << gemm_role_name(role) << " " << micro_batch);
        const Label label{micro_batch, phase, linear.name, gemm_role_name(role)};
        CHECK(count([&](const TracedOutput& output) {
                return output.label == label && output.name == "d" && output.rows == rows &&
                       output.cols == cols;
              }) == 1);
      }
    }
    for (const Slot slot : kSlots) {
      const auto [rows, k] = operand_shape(slot, kTokens, linear.in, linear.out);
      for (const std::int64_t micro_batch : {0, 1}) {
        INFO(linear.name << " " << slot_name(slot) << " " << micro_batch);
        const Phase phase = is_weight(slot)                ? Phase::weights
                            : tensor_of(slot) == Tensor::x ? Phase::forward
                                                           : Phase::backward;
        const bool made = quantized && (!is_weight(slot) || micro_batch == 0);
        CHECK(count([&](const TracedOutput& output) {
                const Label& at = output.label;
                // dx of a norm and its quantization are one operation of the layer that reads it.
                const bool here = at.layer == linear.name && at.micro_batch == micro_batch;
                return here && output.name == "codes" && output.part == slot_name(slot) &&
                       (at.phase == phase || slot == Slot::wgrad_x) && output.rows == rows &&
                       output.cols == k;
              }) == (made ? 1 : 0));
      }
    }
  }
  std::vector<std::string> updated, attention, uploads, added;
  for (const TracedOutput& output : trace) {
    if (output.kind == "adamw" && output.name == "master") {
      CHECK(output.label.phase == Phase::update);
      updated.push_back(output.label.layer);
    }
    if (output.name == "out" && output.kind == "attention_forward") {
      attention.push_back("forward " + output.label.layer);
    }
    if (output.name == "dq") attention.push_back("backward " + output.label.layer);
    if (output.kind == "upload") uploads.push_back(output.name);
    if (output.name == "gradient") {
      CHECK(output.label.phase == Phase::backward);
      added.push_back(output.label.layer);
    }
  }
  std::vector<std::string> parameters;
  for (const ParameterDeclaration& parameter : declaration.parameters()) {
    parameters.push_back(parameter.name);
  }
  CHECK(updated == parameters);
  const std::vector<std::string> each = {"forward layers.0.attention", "forward layers.1.attention",
                                         "backward layers.1.attention",
                                         "backward layers.0.attention"};
  std::vector<std::string> both = each;
  both.insert(both.end(), each.begin(), each.end());
  CHECK(attention == both);
  const std::vector<std::string> norms = {
      "layers.1.mlp.norm.weight", "layers.1.attention.norm.weight", "layers.0.mlp.norm.weight",
      "layers.0.attention.norm.weight"};
  std::vector<std::string> twice = norms;
  twice.insert(twice.end(), norms.begin(), norms.end());
  CHECK(added == twice);
  const std::vector<std::string> batch = {"tokens", "targets", "target weights", "positions",
                                          "document starts"};
  std::vector<std::string> expected = {"step scalars", "step number"};
  expected.insert(expected.end(), batch.begin(), batch.end());
  expected.insert(expected.end(), batch.begin(), batch.end());
  CHECK(uploads == expected);
}

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
    CAPTURE(fault.step, target.kind, target.name, target.label.layer);
    FaultyBackend faulty(fault);
    const RecordedRun bad = train(config, faulty, scratch / "bad");
    const std::int64_t shows = compare_files(good, bad).first.step;
    if (shows > 0) {
      const ReplaySource a = source_of(good, healthy), b = source_of(bad, healthy);
      const ExecutedAgain again = locate_difference(a, b, common_start(good, bad, shows), shows);
      CHECK(again.difference.where == LocatedDifference::Where::nowhere);
      CHECK(compare_with_file(good, again.a).difference.step == -1);
      CHECK(compare_with_file(bad, again.b).difference.step == shows);
      // What a step leaves to the next one alone shows there: weights, and bits of gradients that
      // are rounded away in their norm, also where an operand of theirs is made in the forward
      // pass.
      const bool is_left = target.label.phase == Phase::update ||
                           target.label.phase == Phase::backward ||
                           target.kind.find("quantize") != std::string::npos;
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
  CHECK(latest_start(stopped, 1).checkpoint == nullptr);
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
  while (fault.step != 3 || target_of(traces, fault).label.gemm.empty()) fault = faults.draw();
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
    std::ofstream(file) << "base = \"e4m3_tensor\"\nname = \"changed\"\n[gemm]\nschedule = \""
                        << schedule << "\"\n";
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
  CHECK(found.a->label.layer == "layers.1.mlp.gate_up");
  CHECK(found.a->label.gemm == "dgrad");
  CHECK(found.a->label.phase == Phase::backward);
  REQUIRE(found.gemm);
  CHECK(found.gemm->parts == GemmElement::Parts::sum);
  // The first group of 32 products is added alike; values decide at which later one they part.
  CHECK(found.gemm->k_begin >= 32);
  CHECK(found.gemm->k_begin % 32 == 0);
  CHECK(found.gemm->k_end == found.gemm->k_begin + 32);
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
  moments.optimizer.update.beta2 = 0.9f;
  const LocatedDifference update = located(moments);
  CHECK(update.where == LocatedDifference::Where::operation);
  CHECK(update.a->label.phase == Phase::update);
  CHECK(update.step == 1);
}

TEST_CASE("planted faults are found with every coordinate") {
  SECTION("infir2") { find_faults(tiny_run("infir2"), 40, 1); }
  SECTION("te_delayed") { find_faults(tiny_run("te_delayed"), 25, 2); }
  SECTION("bf16") { find_faults(tiny_run("bf16", kGpt2), 25, 3); }
  SECTION("halo2_fp8") { find_faults(tiny_run("halo2_fp8"), 10, 4); }
}
