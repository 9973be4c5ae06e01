// What --dry-run promises, against what a stage allocates.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/backend/factory.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/model/transformer.hpp"
#include "src/train/plan.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

/// Bytes that parameters and a transformer take, beside the plan's.
void check_memory(const ModelConfig& model, const std::string& recipe_name,
                  const std::string& backend_name) {
  RunConfig config;
  config.model = model;
  config.optimizer.second_moment = DType::bf16;
  StageConfig stage;
  stage.micro_batch_sequences = 2;
  stage.sequence_length = 256;
  const Recipe recipe = load_recipe(recipe_name);
  const auto backend = make_backend(backend_name, 1);
  const MemoryPlan plan = plan_memory(config, stage, recipe, *backend);
  const Parameters parameters(*backend, model, config.optimizer, recipe.activation_dtype);
  const auto of_parameters = static_cast<double>(backend->memory_bytes());
  const Transformer transformer(*backend, parameters, model, recipe,
                                BatchShape{2, stage.sequence_length, {}});
  const auto total = static_cast<double>(backend->memory_bytes());
  INFO(recipe_name << " on " << backend_name << ": planned " << plan.parameters << " + "
                   << plan.activations << " + " << plan.operands << ", allocated " << of_parameters
                   << " and then " << total);
  // Allocations are rounded up to 64 bytes; norms are the smallest.
  CHECK(std::abs(of_parameters - static_cast<double>(plan.parameters)) <= 0.005 * of_parameters);
  const auto planned = static_cast<double>(plan.parameters + plan.activations + plan.operands);
  CHECK(std::abs(total - planned) <= 0.005 * total);
}

}  // namespace

TEST_CASE("planned memory is what a stage allocates") {
  ModelConfig model = load_model("tiny");
  for (const char* recipe : {"bf16", "fp32", "infir2", "te_delayed", "mxfp8", "deepseek_v3"}) {
    check_memory(model, recipe, "cpu");
  }
  model.qk_norm = true;
  model.o_bias = model.mlp_bias = true;
  model.tie_word_embeddings = false;
  model.head_dim = 96;
  check_memory(model, "infir2", "cpu");
  check_memory(model, "bf16", "truth");
}

TEST_CASE("the layout of parameters counts what they hold") {
  const auto backend = make_backend("cpu", 1);
  for (const ModelConfig& model :
       {fp8lab::test::small_model(), fp8lab::test::qwen3_model(), fp8lab::test::biased_model()}) {
    const Parameters parameters(*backend, model, OptimizerConfig{}, DType::bf16);
    std::int64_t weights = 0;
    for (const Parameter& parameter : parameters.all()) weights += parameter.master().size();
    CHECK(declaration_of(model).weights() == weights);
  }
  // The published numbers of weights.
  CHECK(declaration_of(load_model("qwen2.5-0.5b")).weights() == 494032768);
  CHECK(declaration_of(load_model("qwen2.5-1.5b")).weights() == 1543714304);
  CHECK(declaration_of(load_model("qwen2.5-7b")).weights() == 7615616512);
  CHECK(declaration_of(load_model("llama3.2-1b")).weights() == 1235814400);
  CHECK(declaration_of(load_model("llama2-7b")).weights() == 6738415616);
  CHECK(declaration_of(load_model("qwen3-0.6b")).weights() == 596049920);
}

TEST_CASE("planned caches are enough for what an evaluation generates") {
  RunConfig config;
  config.model = load_model("tiny");
  StageConfig stage;
  stage.micro_batch_sequences = 2;
  stage.sequence_length = 256;
  const Recipe recipe = load_recipe("infir2");
  const auto backend = make_backend("cpu", 1);
  const Parameters parameters(*backend, config.model, config.optimizer, recipe.activation_dtype);
  Transformer transformer(*backend, parameters, config.model, recipe,
                          BatchShape{2, stage.sequence_length, {}});
  stage.eval = EvalConfig{};
  stage.eval->data.form = DataForm::prompt_response;
  stage.eval->exact_match = 100;
  stage.eval->max_new_tokens = 100;
  const DataSources data = open_sources(stage.eval->data, config.model.vocab_size, "test");
  const auto before = static_cast<double>(backend->memory_bytes());
  const Evaluator evaluator(*backend, parameters, transformer, *stage.eval, data);
  const auto taken = static_cast<double>(backend->memory_bytes()) - before;
  const auto planned = static_cast<double>(plan_memory(config, stage, recipe, *backend).caches);
  CHECK(taken <= planned);
  CHECK(taken > 0.5 * planned);  // the longest prompt is shorter than a sequence
  stage.eval->exact_match = 0;
  CHECK(plan_memory(config, stage, recipe, *backend).caches == 0);
}

TEST_CASE("a warning of many layers is told once, with their pattern and number") {
  RunConfig config;
  config.model = load_model("tiny");
  config.model.num_hidden_layers = 28;
  StageConfig stage;
  stage.micro_batch_sequences = 1;
  stage.sequence_length = 200;  // no multiple of a tile
  const Recipe recipe = load_recipe("infir2");
  const std::vector<std::string> lines = stage_warnings(config, stage, recipe);
  REQUIRE(lines.size() >= 2);
  for (const std::string& line : lines) CHECK(line.find("layers.3.") == std::string::npos);
  const std::string all =
      "layers.*.{attention.qkv,attention.o,mlp.gate_up,mlp.down} (112 layers): ";
  CHECK(std::any_of(lines.begin(), lines.end(),
                    [&](const std::string& line) { return line.starts_with(all); }));
  CHECK(std::set<std::string>(lines.begin(), lines.end()).size() == lines.size());
}

TEST_CASE("layers of an exception are listed") {
  RunConfig config;
  config.model = load_model("tiny");
  config.model.num_hidden_layers = 4;
  StageConfig stage;
  stage.micro_batch_sequences = 1;
  stage.sequence_length = 200;
  Recipe recipe = load_recipe("infir2");
  RecipeOverride exception;
  exception.match = "layers.{0,2}.mlp.down";
  exception.recipe = recipe.high_precision;
  recipe.overrides.push_back(exception);
  std::string text;
  for (const std::string& line : stage_warnings(config, stage, recipe)) text += line + "\n";
  CHECK(text.find("layers.{1,3}.mlp.down (14 layers): ") != std::string::npos);
}

TEST_CASE("a stage that exceeds the memory says what it needs and what there is") {
  RunConfig config;
  config.model = load_model("tiny");
  config.stages.emplace_back();
  config.stages.front().name = "big";
  const auto backend = make_backend("cpu", 1);
  require_memory_of(config, *backend);
  config.stages.front().batch_sequences = config.stages.front().micro_batch_sequences = 4'000'000;
  try {
    require_memory_of(config, *backend);
    FAIL("not refused");
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(message.find("stage big: steps of 4000000 x 256 tokens") == 0);
    CHECK(message.find("activations ") != std::string::npos);
    CHECK(message.find("this machine has ") != std::string::npos);
  }
}
