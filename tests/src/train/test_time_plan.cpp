// The work behind a time estimate, and how rates are carried over to it. Nothing here looks at a
// clock.
#include <catch2/catch.hpp>

#include <string>

#include "src/architecture/parts.hpp"
#include "src/backend/factory.hpp"
#include "src/config/config.hpp"
#include "src/model/transformer.hpp"
#include "src/train/plan/time_plan.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

double work_of(const WorkLog& log, WorkClass work_class) {
  double sum = 0;
  for (const auto& [key, kind] : log) sum += kind.work_class == work_class ? kind.work : 0;
  return sum;
}

WorkOfKind named(const WorkLog& log, std::string_view name) {
  WorkOfKind total;
  for (const auto& [key, kind] : log) {
    if (kind.name != name) continue;
    total.calls += kind.calls;
    total.work += kind.work;
  }
  return total;
}

struct Case {
  Case() {
    config.model = fp8lab::test::small_model();
    config.model.set_layer_count(6);
    stage.name = "s";
    stage.batch_sequences = 6;
    stage.micro_batch_sequences = 2;
    stage.sequence_length = 48;
  }
  RunConfig config;
  StageConfig stage;
  std::unique_ptr<Backend> backend = make_backend("cpu", 1);
};

}  // namespace

TEST_CASE("a recorded step has the work of the model and of all micro-batches") {
  Case c;
  c.config.logging.hash_every_step = false;
  const WorkLog log = record_step(c.config, c.stage, load_recipe("infir2"), *c.backend);
  const double tokens = 6 * 48;
  double weights = 0, inputs = 0, outputs = 0;
  const Declaration declaration = declaration_of(c.config.model);
  for (const LinearDeclaration& layer : declaration.linears()) {
    weights += static_cast<double>(layer.in * layer.out);
    if (layer.name == "lm_head") continue;  // not quantized
    inputs += static_cast<double>(layer.in);
    outputs += static_cast<double>(layer.out);
  }
  CHECK(work_of(log, WorkClass::gemm) == 3 * tokens * weights);
  CHECK(named(log, "product").calls == 3 * 3 * 25);
  // Forward and backward, four heads of 16, 6 layers.
  CHECK(work_of(log, WorkClass::attention) == 2 * 6 * (6 * 48 * 49 / 2) * (4 * 16));
  // Weights once, in two orientations; x and dy of every micro-batch in two.
  double quantized = 2 * (weights - 64 * 272) + tokens * 2 * (inputs + outputs);
  // Norms and SwiGLU that are quantized as they are made: theirs as well, of 64 and 96 columns.
  quantized += tokens * 6 * (2 * (64 + 64) + (2 * 96 + 96) + (2 * 96 + 96 + 2 * 96));
  // All norms of the layers but the first are of a sum, of two tensors and written.
  quantized += tokens * 11 * 3 * 64;
  CHECK(work_of(log, WorkClass::quantization) == quantized);
  CHECK(named(log, "embedding_backward").calls == 3);
  CHECK(named(log, "add").calls == 0);
  CHECK(named(log, "add_rmsnorm_forward").work == tokens * (3 + 2) * 64);  // before the head
  CHECK(named(log, "rmsnorm_backward_add").work == tokens * 6 * 2 * (3 + 3) * 64);
  CHECK(named(log, "rmsnorm_backward").work == tokens * 3 * 64);
  const double parameters = static_cast<double>(declaration_of(c.config.model).weights());
  // The gradients of the other weights are written by their first product.
  CHECK(named(log, "fill_zero").work == 4 * (parameters - weights));
  CHECK(named(log, "adamw").work == 5 * parameters);
  CHECK(named(log, "accumulate_square_sum").work == parameters);
  CHECK(work_of(log, WorkClass::measurement) == 0);
}

TEST_CASE("one micro-batch, and the warm-up of a history, count as they should") {
  Case c;
  c.stage.batch_sequences = 2;
  Recipe recipe = load_recipe("te_delayed");
  const WorkLog log = record_step(c.config, c.stage, recipe, *c.backend);
  CHECK(named(log, "embedding_forward").calls == 1);
  for (QuantSpec& slot : recipe.linear.slots) slot.warmup_steps = 5;
  const WorkLog later = record_step(c.config, c.stage, recipe, *c.backend);
  CHECK(work_of(later, WorkClass::quantization) == work_of(log, WorkClass::quantization));
}

TEST_CASE("a step that cannot accumulate is recorded and timed with its one micro-batch") {
  Case c;
  c.stage.batch_sequences = 2;
  c.config.optimizer.weights = c.config.optimizer.gradients = plain_state(DType::bf16);
  const Recipe recipe = load_recipe("infir2");
  const WorkLog log = record_step(c.config, c.stage, recipe, *c.backend);
  CHECK(named(log, "embedding_forward").calls == 1);
  CHECK(work_of(time_step(c.config, c.stage, recipe, *c.backend).mean, WorkClass::gemm) ==
        work_of(log, WorkClass::gemm));
}

TEST_CASE("a smaller step has the kinds of operations of the whole one") {
  Case c;
  Recipe exceptions = load_recipe("infir2");
  for (const char* match : {"layers.first.mlp.down", "layers.last.attention.{qkv,o}"}) {
    exceptions.overrides.push_back({match, exceptions.high_precision});
  }
  exceptions.overrides.front().recipe = load_recipe("mxfp8").linear;
  for (const Recipe& recipe : {load_recipe("bf16"), load_recipe("deepseek_v3"),
                               load_recipe("fp4_occ"), load_recipe("nvfp4"), exceptions}) {
    INFO(recipe.name);
    const WorkLog whole = record_step(c.config, c.stage, recipe, *c.backend);
    const RunConfig small = scaled_run(c.config, c.stage, 32);
    const WorkLog part = record_step(small, small.stages.front(), recipe, *c.backend);
    for (const auto& [key, kind] : whole) {
      INFO(key);
      CHECK(part.count(key) == 1);
    }
    CHECK(work_of(part, WorkClass::gemm) < 0.1 * work_of(whole, WorkClass::gemm));
  }
}

TEST_CASE("extents are bounded, or those of the stage") {
  Case c;
  c.config.model.num_attention_heads = 8;
  c.config.model.num_key_value_heads = 4;
  const RunConfig small = scaled_run(c.config, c.stage, 32);
  CHECK(small.model.layer_count() == 3);
  CHECK(small.model.hidden_size == 32);
  CHECK(small.model.intermediate_size == 32);
  CHECK(small.model.vocab_size == 32);
  CHECK(small.model.num_key_value_heads == 1);
  CHECK(small.model.num_attention_heads == 2);
  CHECK(small.stages.front().sequence_length == 32);
  CHECK(small.stages.front().micro_batch_sequences == 1);
  RunConfig whole = scaled_run(c.config, c.stage, 1024);
  CHECK(whole.stages.front().micro_batch_sequences == 2);
  CHECK(whole.stages.front().batch_sequences == 2);
  CHECK(whole.stages.front().sequence_length == 48);
  whole.model.set_layer_count(6);
  CHECK(whole.model == c.config.model);
}

TEST_CASE("a timed step is the recorded one, and gives its memory back") {
  Case c;
  c.stage.batch_sequences = 2;
  c.config.model.set_layer_count(2);
  for (const char* name : {"infir2", "te_delayed"}) {
    const Recipe recipe = load_recipe(name);
    const WorkLog recorded = record_step(c.config, c.stage, recipe, *c.backend);
    const TimedStep both = time_step(c.config, c.stage, recipe, *c.backend);
    const WorkLog& timed = both.mean;
    CHECK(c.backend->memory_bytes() == 0);
    REQUIRE(timed.size() == recorded.size());
    for (const auto& [key, kind] : recorded) {
      INFO(key);
      CHECK(timed.at(key).calls == kind.calls);
      CHECK(timed.at(key).work == kind.work);
      CHECK(both.least.at(key).work == kind.work);
      CHECK(both.least.at(key).seconds > 0);
      CHECK(both.least.at(key).seconds <= timed.at(key).seconds);
    }
  }
}

TEST_CASE("a held-out loss is the forward pass of its sequences, weights prepared once") {
  Case c;
  const Recipe recipe = load_recipe("infir2");
  CHECK(record_held_out(c.config, c.stage, recipe, *c.backend).empty());
  c.stage.eval = EvalConfig{};
  c.stage.eval->sequences = 2;
  const WorkLog one = record_held_out(c.config, c.stage, recipe, *c.backend);
  c.stage.eval->sequences = 5;  // three micro-batches of two
  const WorkLog three = record_held_out(c.config, c.stage, recipe, *c.backend);
  c.stage.batch_sequences = 2;
  const WorkLog step = record_step(c.config, c.stage, recipe, *c.backend);
  CHECK(work_of(three, WorkClass::gemm) == 3 * work_of(one, WorkClass::gemm));
  // Forward is one of the three products of a step.
  CHECK(3 * work_of(one, WorkClass::gemm) == work_of(step, WorkClass::gemm));
  CHECK(work_of(one, WorkClass::optimizer) == 0);
  CHECK(work_of(three, WorkClass::quantization) < 3 * work_of(one, WorkClass::quantization));
}

TEST_CASE("a step that logs statistics measures every operand") {
  Case c;
  c.config.logging.hash_every_step = false;
  const Recipe recipe = load_recipe("infir2");
  CHECK(work_of(record_step(c.config, c.stage, recipe, *c.backend), WorkClass::measurement) == 0);
  CHECK(work_of(record_step(c.config, c.stage, recipe, *c.backend, true), WorkClass::measurement) >
        0);
  c.config.logging.hash_every_step = true;
  CHECK(named(record_step(c.config, c.stage, recipe, *c.backend), "hash_tensors").calls == 1);
}

TEST_CASE("an estimate takes the rate of the nearest kind") {
  const auto kind = [](const char* name, WorkClass work_class, double work, double seconds = 0) {
    return WorkOfKind{name, work_class, 1, work, seconds};
  };
  const WorkLog timed = {
      {"gemm a", kind("gemm", WorkClass::gemm, 100, 1)},
      {"gemm b", kind("gemm", WorkClass::gemm, 100, 3)},
      {"compensate", kind("compensate", WorkClass::gemm, 100, 90)},
      {"add", kind("add", WorkClass::elementwise, 10, 2)},
      {"rope", kind("rope", WorkClass::elementwise, 30, 2)},
  };
  const WorkLog step = {
      {"gemm a", kind("gemm", WorkClass::gemm, 1000)},         // its own kind: 10
      {"gemm c", kind("gemm", WorkClass::gemm, 100)},          // all of its name: 2
      {"argmax", kind("argmax", WorkClass::elementwise, 40)},  // all of its class: 4
      {"adamw", kind("adamw", WorkClass::optimizer, 1)},       // nothing near
  };
  const TimePlan plan = estimate(step, timed);
  CHECK(plan.of(WorkClass::gemm) == Approx(12));
  CHECK(plan.of(WorkClass::elementwise) == Approx(4));
  CHECK(plan.of(WorkClass::optimizer) == 0);
  CHECK(plan.total() == Approx(16));
  CHECK(describe(plan) == "GEMMs 12, elementwise 4");
}

// A GPU takes 0.1 s to load its code, and as long for any small size. What a first size cost once
// showed no growth, and its rate gave 127592 s for a minute.
TEST_CASE("the first size does not say how long the next one takes") {
  CHECK(seconds_of_next_size(0.1, 0) == 0);
  CHECK(seconds_of_next_size(0.01, 0.1) == Approx(0.002));
  CHECK(seconds_of_next_size(0.01, 0.01) == Approx(0.02));
  CHECK(seconds_of_next_size(0.04, 0.01) == Approx(0.32));
  CHECK(seconds_of_next_size(0.08, 0.01) == Approx(0.64));
}

TEST_CASE("rates are those of steps that grow with their work") {
  SizeGrowth waits;  // beside other load: 32 and 64 wait as long, and then the work shows
  waits.add(0.159, 600);
  waits.add(0.223, 525);
  CHECK_FALSE(waits.has_settled());
  waits.add(0.25, 130);
  CHECK_FALSE(waits.has_settled());
  waits.add(0.7, 100);
  CHECK(waits.has_settled());
  waits.add(0.8, 50);  // a larger vocabulary alone adds little
  CHECK(waits.has_settled());
  SizeGrowth begins;  // the other load begins
  begins.add(0.003, 20);
  begins.add(0.16, 330);
  CHECK_FALSE(begins.has_settled());
  SizeGrowth launches;
  for (const double estimated : {100.0, 20.0, 4.0}) launches.add(0.001, estimated);
  CHECK_FALSE(launches.has_settled());
}

TEST_CASE("sizes that a transform does not fit are passed over") {
  Case c;
  c.config.model.hidden_size = 128;
  c.config.model.intermediate_size = 128;
  c.config.model.head_dim = 32;
  c.config.model.vocab_size = 256;
  c.stage.sequence_length = 128;
  const Recipe recipe = parse_recipe(
      "name = \"r\"\n[slots.default]\nformat = \"int8\"\ntile = \"tensor\"\n"
      "transform = \"hadamard:128\"\n[gemm]\naccumulator = \"sm90_bf16\"\n",
      "r.toml");
  const RunConfig small = scaled_run(c.config, c.stage, 32);
  CHECK_THROWS_AS(record_step(small, small.stages.front(), recipe, *c.backend), Error);
  CHECK(plan_time(c.config, c.stage, recipe, *c.backend).step.of(WorkClass::gemm) > 0);
}
