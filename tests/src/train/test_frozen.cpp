// Frozen parameters: no gradient, no moments, no update; the others train as without them.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/step/execution.hpp"
#include "src/train/step/ranks.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kSequences = 2, kLength = 32;

/// What two steps of two micro-batches leave, by the names of parameters.
struct Trail {
  std::map<std::string, std::vector<float>> initial, gradients, weights;
  std::vector<std::string> frozen;
  std::vector<OperandStatistics> statistics;  ///< of the first step, as `gradients`
  double loss = 0;                            ///< of the first step
  std::size_t parameter_bytes = 0, bytes = 0;
};

Trail train(const ModelConfig& model, const Recipe& recipe, const std::string& frozen,
            const MemoryConfig& memory = {}) {
  const auto backend = make_backend("cpu", 1);
  OptimizerConfig optimizer;
  if (!frozen.empty()) optimizer.groups = {{.match = frozen, .frozen = true}};
  Parameters parameters(*backend, model, optimizer, recipe.activation_dtype);
  parameters.initialize(3);
  Trail trail;
  trail.parameter_bytes = backend->memory_bytes();
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
  Transformer transformer(*backend, parameters, model, recipe,
                          BatchShape{kSequences, kLength, {}, memory});
  const StepBlock block(*backend);
  const TrainingStep step{*backend, parameters, transformer, block, likelihood()};
  for (const Parameter& parameter : parameters.all()) {
    trail.initial[parameter.name()] = parameters.download(parameter);
    if (!parameter.is_trained()) trail.frozen.push_back(parameter.name());
  }
  for (std::uint32_t number = 1; number <= 2; ++number) {
    const std::vector<Batch> batches = {dataset.next(kSequences, kLength),
                                        dataset.next(kSequences, kLength)};
    StepContext context;
    context.seed = 5;
    context.step = number;
    context.log_statistics = number == 1;
    const std::int64_t tokens = step.accumulate(context, batches, 3e-3);
    for (const Parameter& parameter : parameters.all()) {
      if (number != 1 || !parameter.is_trained()) continue;
      std::vector<float>& gradient = trail.gradients[parameter.name()];
      gradient.resize(static_cast<std::size_t>(parameter.gradient().size()));
      download_floats(*backend, parameter.gradient(), gradient);
    }
    step.update({}, 5, tokens);
    if (number != 1) continue;
    const StepResults results = step.results(false, true);
    trail.loss = results.mean_loss();
    trail.statistics = results.statistics;
  }
  for (const Parameter& parameter : parameters.all()) {
    trail.weights[parameter.name()] = parameters.download(parameter);
  }
  trail.bytes = backend->memory_bytes();
  return trail;
}

bool is_trained(const Trail& trail, const std::string& name) {
  return trail.gradients.count(name) > 0;
}

void check_frozen(const Trail& whole, const Trail& frozen) {
  REQUIRE_FALSE(frozen.frozen.empty());
  CHECK(frozen.loss == whole.loss);
  CHECK(frozen.parameter_bytes < whole.parameter_bytes);
  CHECK(frozen.bytes < whole.bytes);
  for (const auto& [name, weights] : frozen.weights) {
    INFO(name);
    CHECK((weights == frozen.initial.at(name)) == !is_trained(frozen, name));
    if (is_trained(frozen, name)) CHECK(frozen.gradients.at(name) == whole.gradients.at(name));
  }
}

ModelConfig model_of(const std::string& name) {
  if (name == "biased") return fp8lab::test::biased_model();
  if (name == "gpt2") return fp8lab::test::gpt2_model();
  return name == "qwen3" ? fp8lab::test::qwen3_model() : fp8lab::test::small_model();
}

RunConfig configured(const std::string& group) {
  return parse_run_config(
      "name = \"r\"\nrecipe = \"te_delayed\"\nseed = 5\n"
      "[model]\nvocab_size = 272\nhidden_size = 64\nintermediate_size = 96\n"
      "num_hidden_layers = 2\nnum_attention_heads = 2\nnum_key_value_heads = 1\n"
      "max_position_embeddings = 32\n"
      "[parallel]\nshards = 4\n[optimizer]\n" +
          group +
          "[[stages]]\nname = \"pretrain\"\nsteps = 3\nbatch_sequences = 4\n"
          "micro_batch_sequences = 1\nsequence_length = 32\n"
          "learning_rate = {peak = 2e-3, warmup_steps = 1}\n",
      "run.toml", {});
}

const std::string kFrozenMlp = "[[optimizer.group]]\nmatch = \"layers.*.mlp\"\nfrozen = true\n";

std::vector<std::uint64_t> hashes_of(const RunConfig& config, Ranks& ranks) {
  const auto backend = make_backend("cpu", 1);
  Execution execution(config, *backend, {}, {}, false, ranks);
  std::vector<std::uint64_t> hashes;
  while (!execution.is_complete()) {
    execution.begin_stage();
    while (!execution.is_stage_done()) hashes.push_back(execution.step().record.weight_hash);
    execution.end_stage();
  }
  return hashes;
}

}  // namespace

TEST_CASE("frozen weights keep their bits, and the others have the gradients of a whole run") {
  const char* recipe = GENERATE("bf16", "infir2", "te_delayed", "nvfp4", "fp4_occ");
  const char* model = GENERATE("small", "biased", "gpt2", "qwen3");
  const Trail whole = train(model_of(model), load_recipe(recipe), "");
  for (const char* pattern : {"layers.*.mlp", "layers.0", "layers", "embed"}) {
    INFO(recipe << ", " << model << ", " << pattern);
    check_frozen(whole, train(model_of(model), load_recipe(recipe), pattern));
  }
}

TEST_CASE("frozen layers recompute and make weights again as others do") {
  const char* recipe = GENERATE("infir2", "te_delayed", "smooth_swiglu", "quartet");
  const ModelConfig model = fp8lab::test::small_model();
  const MemoryConfig memory{Recompute::layer, WeightCodes::remake, 0};
  const Trail kept = train(model, load_recipe(recipe), "layers.*.mlp");
  const Trail again = train(model, load_recipe(recipe), "layers.*.mlp", memory);
  CHECK(again.weights == kept.weights);
  CHECK(again.gradients == kept.gradients);
  check_frozen(train(model, load_recipe(recipe), "", memory), again);
}

TEST_CASE("a frozen layer measures all operands but those of wgrad") {
  const Recipe recipe = load_recipe("infir2");
  const Trail whole = train(fp8lab::test::small_model(), recipe, "");
  const Trail frozen = train(fp8lab::test::small_model(), recipe, "layers.0.mlp.down");
  const std::vector<LinearDeclaration> linears =
      declaration_of(fp8lab::test::small_model()).linears();
  REQUIRE(frozen.statistics.size() == linears.size() * kSlots.size());
  for (std::size_t i = 0; i < frozen.statistics.size(); ++i) {
    const Slot slot = kSlots[i % kSlots.size()];
    const std::string& layer = linears[i / kSlots.size()].name;
    INFO(layer << ", " << slot_name(slot));
    const bool is_made = layer != "layers.0.mlp.down" || gemm_role(slot) != GemmRole::wgrad;
    CHECK(frozen.statistics[i].hash == (is_made ? whole.statistics[i].hash : 0));
    CHECK(frozen.statistics[i].is_absent() == !is_made);
    CHECK(std::isnan(frozen.statistics[i].underflow_fraction) == !is_made);
    CHECK((frozen.statistics[i].top_channel[0] == -1.0) == !is_made);
  }
}

TEST_CASE("the gradients of a frozen bias or weight alone are left out") {
  const ModelConfig model = fp8lab::test::biased_model();
  const Trail whole = train(model, load_recipe("infir2"), "");
  for (const char* name : {"layers.*.mlp.down.bias", "layers.*.mlp.down.weight"}) {
    const Trail frozen = train(model, load_recipe("infir2"), name);
    CHECK(frozen.frozen.size() == 2);
    for (const auto& [parameter, gradient] : frozen.gradients) {
      INFO(parameter);
      CHECK(gradient == whole.gradients.at(parameter));
    }
  }
}

TEST_CASE("the plan of a frozen run is smaller by gradients, moments and their file") {
  const auto backend = make_backend("cpu", 1);
  const auto plan = [&](const std::string& group) {
    const RunConfig config = configured(group);
    return plan_memory(config, config.stages[0], load_recipe("te_delayed"), *backend);
  };
  const MemoryPlan whole = plan(""), frozen = plan(kFrozenMlp);
  std::int64_t weights = 0;
  const Declaration declaration = declaration_of(configured("").model);
  for (const ParameterDeclaration& parameter : declaration.parameters()) {
    if (layer_pattern_matches("layers.*.mlp", parameter.name, 2)) weights += parameter.size();
  }
  // A gradient and two moments, in FP32.
  CHECK(whole.parameters - frozen.parameters >= weights * 3 * 4);
  CHECK(whole.checkpoint - frozen.checkpoint == weights * 2 * 4);
  CHECK(frozen.activations <= whole.activations);
  CHECK(frozen.total() < whole.total());
}

TEST_CASE("shards and ranks leave frozen parameters out of their sums") {
  const RunConfig config = configured(kFrozenMlp);
  CHECK(config.hash != configured("").hash);
  const std::vector<std::uint64_t> alone = hashes_of(config, one_rank());
  CHECK(alone.size() == 3);
  CHECK(alone != hashes_of(configured(""), one_rank()));
  ThreadRanks ranks(2);
  std::vector<std::vector<std::uint64_t>> hashes(2);
  std::thread other([&] { hashes[1] = hashes_of(config, ranks[1]); });
  hashes[0] = hashes_of(config, ranks[0]);
  other.join();
  CHECK(hashes[0] == alone);
  CHECK(hashes[1] == alone);
}

TEST_CASE("a model whose parameters are all frozen is refused") {
  const auto backend = make_backend("cpu", 1);
  OptimizerConfig optimizer;
  optimizer.groups = {{.match = "*", .frozen = true}};
  CHECK_THROWS_WITH(Parameters(*backend, fp8lab::test::small_model(), optimizer, DType::bf16),
                    Catch::Contains("all parameters of the model are frozen"));
  CHECK_THROWS_WITH(configured("[[optimizer.group]]\nmatch = \"layers\"\nfrozen = true\n"
                               "learning_rate = 0.5\n"),
                    Catch::Contains("learning_rate") && Catch::Contains("frozen = false"));
}
