// Runs that replace sources of error by exact arithmetic: what is left, and who is named.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/step/execution.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;

namespace {

const std::string kHealthy =
    "name = \"healthy\"\n[gemm]\naccumulator = \"sm90_wgmma_fp8\"\nschedule = \"promote:32\"\n"
    "[gemm.wgrad]\noutput = \"fp32\"\n[slots.default]\nformat = \"e4m3fn\"\ntile = \"1x32\"\n";

/// Four steps of two micro-batches. `exact` is a TOML list.
RunConfig configured(const std::string& recipe, const std::string& exact,
                     std::vector<Assignment> settings = {}) {
  settings.push_back({"exact", exact});
  settings.push_back({"recipe", "\"" + recipe + "\""});
  return parse_run_config(
      "name = \"r\"\nseed = 5\n"
      "[model]\nvocab_size = 272\nhidden_size = 64\nintermediate_size = 64\n"
      "num_hidden_layers = 1\nnum_attention_heads = 2\nnum_key_value_heads = 1\nhead_dim = 32\n"
      "initializer_range = 0.08\n[logging]\nstatistics_every_steps = 0\n"
      "[[stages]]\nname = \"s\"\nkind = \"pretrain\"\nsteps = 4\nbatch_sequences = 2\n"
      "micro_batch_sequences = 1\nsequence_length = 64\nlearning_rate.peak = 0.01\n"
      "learning_rate.warmup_steps = 0\ndata.problems = 200\n",
      "run.toml", settings);
}

StepRecord next_step(Execution& execution) {
  if (execution.is_recipe_due()) execution.change_recipe();
  return execution.step().record;
}

std::vector<StepRecord> trained(const RunConfig& config, const std::string& backend_name = "cpu",
                                int threads = 2) {
  const auto backend = make_backend(backend_name, threads);
  Execution execution(config, *backend, {}, {});
  execution.begin_stage();
  std::vector<StepRecord> steps;
  while (!execution.is_stage_done()) steps.push_back(next_step(execution));
  return steps;
}

/// The same with two steps before a checkpoint and the others in another Execution.
std::vector<StepRecord> trained_in_parts(const RunConfig& config) {
  const ScratchDirectory folder;
  const std::filesystem::path checkpoint = folder / "checkpoint.safetensors";
  const auto backend = make_backend("cpu", 2), second_backend = make_backend("cpu", 2);
  Execution first(config, *backend, {}, {}), second(config, *second_backend, {}, {});
  std::vector<StepRecord> steps;
  first.begin_stage();
  for (int i = 0; i < 2; ++i) steps.push_back(next_step(first));
  first.save(checkpoint, 0);
  second.go_on_from(std::make_shared<const CheckpointFile>(checkpoint),
                    read_checkpoint(checkpoint).position);
  second.begin_stage();
  while (!second.is_stage_done()) steps.push_back(next_step(second));
  return steps;
}

bool have_same_bits(const std::vector<StepRecord>& a, const std::vector<StepRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.loss == y.loss && x.weight_hash == y.weight_hash;
  });
}

/// Mean distance of the losses from those in double precision.
double distance(const std::vector<StepRecord>& steps, const std::vector<StepRecord>& truth) {
  double sum = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) sum += std::abs(steps[i].loss - truth[i].loss);
  return sum / static_cast<double>(truth.size());
}

/// A recipe in a file, and what its runs are measured by.
class Planted {
 public:
  explicit Planted(const std::string& recipe) : file_(folder_ / "planted.toml") {
    write_file_atomically(file_, recipe);
    truth_ = trained(configured(file_.string(), "[]"), "truth");
  }

  double distance(const std::string& exact) const {
    return ::distance(trained(configured(file_.string(), exact)), truth_);
  }
  /// The source of the group without which the losses are nearest.
  std::string named(const std::string& group) const {
    const Declaration declaration = declaration_of(configured("bf16", "[]").model);
    std::string best;
    double least = 0;
    for (const ErrorSourceGroup& found : error_sources(declaration.linears())) {
      if (found.name != group) continue;
      for (const ErrorSource& source : found.sources) {
        const double left = distance("[\"" + source.name + "\"]");
        if (best.empty() || left < least) {
          best = source.name;
          least = left;
        }
      }
    }
    CHECK(least < 0.5 * distance("[]"));
    return best;
  }

 private:
  ScratchDirectory folder_;
  std::filesystem::path file_;
  std::vector<StepRecord> truth_;
};

}  // namespace

TEST_CASE("with every source exact a run has the losses of double precision") {
  const char* recipe = GENERATE("bf16", "te_delayed", "infir2", "quartet", "fp4_dge");
  INFO(recipe);
  const std::vector<StepRecord> truth = trained(configured(recipe, "[]"), "truth");
  const double whole = distance(trained(configured(recipe, "[]")), truth);
  const double all = distance(trained(configured(recipe, "[\"all\"]")), truth);
  CHECK(all < 1e-5);
  CHECK(whole > 30 * all);
}

TEST_CASE("a source that does not occur changes no bit") {
  const std::vector<StepRecord> whole = trained(configured("te_current", "[]"));
  CHECK(have_same_bits(whole, trained(configured("te_current", "[\"saturation\"]"))));
  CHECK(have_same_bits(whole, trained(configured("te_current", "[\"amax history\"]"))));
  CHECK_FALSE(have_same_bits(whole, trained(configured("te_current", "[\"element cast\"]"))));
  CHECK_FALSE(have_same_bits(whole, trained(configured("te_current", "[\"wgrad.x\"]"))));
}

TEST_CASE("without its estimator a recipe is the one that never had it") {
  const auto without = [](const char* recipe, const char* exact) {
    return trained(configured(recipe, exact));
  };
  const std::vector<StepRecord> straight = without("fp4_direct", "[]");
  CHECK(have_same_bits(without("fp4_dge", "[\"estimator\"]"), straight));
  CHECK_FALSE(have_same_bits(without("fp4_dge", "[]"), straight));
  // It is one of w in the forward pass, and of no other operand.
  for (const char* exact : {"[\"fprop.w\"]", "[\"fprop\"]", "[\"all\"]"}) {
    INFO(exact);
    CHECK(have_same_bits(without("fp4_dge", exact), without("fp4_direct", exact)));
  }
  for (const char* exact : {"[\"fprop.x\"]", "[\"wgrad\"]", "[\"dgrad\"]"}) {
    INFO(exact);
    CHECK_FALSE(have_same_bits(without("fp4_dge", exact), without("fp4_direct", exact)));
  }
}

TEST_CASE("the bits do not depend on threads") {
  const RunConfig config = configured("te_delayed", "[\"element cast\", \"dgrad.w\"]");
  CHECK(have_same_bits(trained(config, "cpu", 1), trained(config, "cpu", 3)));
}

TEST_CASE("a planted source is named by the losses") {
  SECTION("saturation") {
    const Planted run(kHealthy +
                      "[slots.x]\ntile = \"tensor\"\nscale_source = \"static\"\n"
                      "static_scale = 0.001953125\n");
    CHECK(run.named("source") == "saturation");
    CHECK(run.named("slot") == "fprop.x");
    CHECK(run.distance("[\"all but saturation\"]") > 0.5 * run.distance("[]"));
    CHECK(run.distance("[\"all but underflow\"]") < 0.1 * run.distance("[]"));
  }
  SECTION("underflow") {
    const Planted run(kHealthy + "[slots.dy]\ntile = \"tensor\"\nscale_source = \"none\"\n");
    CHECK(run.named("source") == "underflow");
  }
  SECTION("a layer") {
    const Planted run(kHealthy +
                      "[[override]]\nmatch = \"layers.0.mlp.down\"\nslots.default.format = "
                      "\"int3\"\nslots.default.tile = \"tensor\"\n");
    CHECK(run.named("layer") == "layers.0.mlp.down");
  }
  SECTION("a GEMM") {
    const Planted run(kHealthy + "[slots.fprop.x]\nformat = \"int3\"\ntile = \"tensor\"\n");
    CHECK(run.named("GEMM") == "fprop");
  }
  SECTION("accumulator") {
    const Planted run(
        "name = \"coarse\"\n[gemm]\naccumulator = { products = 32, fraction_bits = 3 }\n"
        "[gemm.wgrad]\noutput = \"fp32\"\n[slots.default]\nformat = \"e4m3fn\"\n"
        "tile = \"tensor\"\n[keep_high_precision]\nmodules = [\"lm_head\"]\n");
    CHECK(run.named("source") == "accumulator");
  }
  SECTION("estimator") {
    const Planted run(kHealthy + "[slots.fprop.w]\nestimator = \"dge:5:3\"\n");
    CHECK(run.named("source") == "estimator");
    CHECK(run.named("slot") == "fprop.w");
    CHECK(run.distance("[\"all but estimator\"]") > 0.5 * run.distance("[]"));
  }
  SECTION("scale rounding") {
    const Planted run(
        "name = \"int8\"\n[gemm]\naccumulator = \"ideal_exact\"\nschedule = \"promote:32\"\n"
        "[gemm.wgrad]\noutput = \"fp32\"\n[slots.default]\nformat = \"int8\"\ntile = \"1x32\"\n"
        "scale_format = \"pow2\"\nscale_rounding = \"nearest\"\n");
    CHECK(run.named("scale") == "scale rounding");
  }
}

TEST_CASE("a run goes on from its checkpoint with the same bits") {
  const RunConfig config = configured("te_delayed", "[\"underflow\", \"storage\"]");
  const std::vector<StepRecord> whole = trained(config);
  const ScratchDirectory folder;
  const std::filesystem::path file = folder / "checkpoint.safetensors";
  RunPosition position;
  {
    const auto backend = make_backend("cpu", 2);
    Execution first(config, *backend, {}, {});
    first.begin_stage();
    first.step();
    first.step();
    first.save(file, 0);
    position = read_checkpoint(file).position;
  }
  const auto backend = make_backend("cpu", 2);
  Execution rest(config, *backend, {}, {});
  rest.go_on_from(std::make_shared<const CheckpointFile>(file), position);
  rest.begin_stage();
  std::vector<StepRecord> steps = {whole[0], whole[1]};
  while (!rest.is_stage_done()) steps.push_back(rest.step().record);
  CHECK(have_same_bits(steps, whole));
}

TEST_CASE("sources are part of what a run is") {
  CHECK(configured("bf16", "[]").hash == configured("bf16", "[]", {{"seed", "5"}}).hash);
  CHECK(configured("bf16", "[]").hash != configured("bf16", "[\"all\"]").hash);
  CHECK(configured("bf16", "[\"underflow\"]").hash != configured("bf16", "[\"all\"]").hash);
}

TEST_CASE("what cannot be exact is refused before the first step") {
  CHECK_THROWS_WITH(trained(configured("infir2", "[\"underflaw\"]")),
                    Catch::Contains("no source of error 'underflaw' (did you mean 'underflow'?)"));
  CHECK_THROWS_WITH(trained(configured("infir2", "[\"layers.7.mlp.down\"]")),
                    Catch::Contains("layers.0.mlp.down"));
  CHECK_THROWS_WITH(trained(configured("infir2", "[\"all but scale rounding\"]")),
                    Catch::Contains("a scale changes no value"));
  CHECK_THROWS_WITH(trained(configured("infir2", "[\"all\"]"), "truth"),
                    Catch::Contains("backend 'truth'") && Catch::Contains("accepted: backend cpu"));
  CHECK_THROWS_WITH(configured("infir2", "[\"underflow\", \"all but dgrad\"]"),
                    Catch::Contains("exact"));
  CHECK_THROWS_WITH(configured("infir2", "\"all\""), Catch::Contains("a list of names"));
  CHECK_THROWS_WITH(
      configured("infir2", "[\"all\"]",
                 {{"stages.s.kind", "sft"}, {"stages.s.eval.rollout.recipe", "bf16"}}),
      Catch::Contains("beside stages.s.eval.rollout.recipe"));
}

TEST_CASE("operands of another recipe within the stage take over nothing of those before") {
  const std::string exact = GENERATE("[]", "[\"element cast\", \"underflow\"]", "[\"all\"]");
  const std::string then = GENERATE("bf16", "te_current", "te_delayed");
  const RunConfig config = configured(
      "te_delayed", exact, {{"stages.s.recipe_at", "[{ step = 2, recipe = \"" + then + "\" }]"}});
  const std::vector<StepRecord> whole = trained(config), parts = trained_in_parts(config);
  CHECK(have_same_bits(whole, parts));
  const bool changes = then != "te_delayed" && exact != "[\"all\"]";
  const std::vector<StepRecord> plain = trained(configured("te_delayed", exact));
  CHECK(have_same_bits({whole.begin(), whole.begin() + 2}, {plain.begin(), plain.begin() + 2}));
  CHECK(have_same_bits(whole, plain) == !changes);
}
