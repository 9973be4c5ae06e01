// What a step computes again instead of keeping it has the bits that it had.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "emulation/recording/stand_in.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/train/step/run_memory.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kSequences = 2, kLength = 32, kLongLength = 64;

/// All that a step leaves: hash of the weights, loss, statistics, states of delayed scales.
struct Trail {
  std::vector<std::uint64_t> hashes;
  std::vector<double> losses;
  std::vector<std::vector<OperandStatistics>> statistics;
  std::vector<std::vector<float>> states;
  std::size_t bytes = 0;
};

bool are_same(const std::vector<OperandStatistics>& a, const std::vector<OperandStatistics>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(OperandStatistics)) == 0;
}

std::vector<float> delayed_states(Backend& backend, const Transformer& transformer) {
  std::vector<float> all;
  for (const auto& linear : transformer.linears()) {
    for (const TensorView& state : linear->delayed_states()) {
      if (state.empty()) continue;
      std::vector<float> values(static_cast<std::size_t>(state.size()));
      backend.download(values.data(), state);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

/// Overwrites what is given up: whoever reads it after all has NaN, or codes that mean nothing.
class Forgetful final : public PassThrough {
 public:
  explicit Forgetful(Backend& original) : PassThrough(original) {}

  void discard(const TensorView& view) override {
    const std::vector<std::uint8_t> ones(
        static_cast<std::size_t>(view.size()) * size_of(view.dtype), 0xff);
    original().upload(view, ones.data());
    ++discarded;
  }
#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { original().run(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  int discarded = 0;
};

class Counter final : public OperationObserver {
 public:
  void after(const AnyOperation& op, const Label&) override {
    if (std::holds_alternative<const ops::MeasureOperand*>(op)) ++measured;
    if (std::holds_alternative<const ops::MeasureBoth*>(op)) measured += 2;
  }
  int measured = 0;  ///< operands
};

/// Three steps of two micro-batches of packed documents, the first and the last of them measured,
/// and an evaluation after the second. Memory that is given up is overwritten if it `forgets`.
Trail train(const ModelConfig& model, const Recipe& recipe, const MemoryConfig& memory,
            int* measured = nullptr, bool forgets = true) {
  const auto cpu = make_backend("cpu", 1);
  Forgetful forgetful(*cpu);
  ObservedBackend backend(forgets ? static_cast<Backend&>(forgetful) : *cpu);
  Parameters parameters(backend, model, {}, recipe.activation_dtype);
  parameters.initialize(3);
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
  Transformer transformer(backend, parameters, model, recipe,
                          BatchShape{kSequences, kLength, {}, memory});
  const StepBlock block(backend);
  const TrainingStep step{backend, parameters, transformer, block, likelihood()};
  Counter counter;
  backend.observe(&counter);
  Trail trail;
  for (std::uint32_t number = 1; number <= 3; ++number) {
    const std::vector<Batch> batches = {dataset.next(kSequences, kLength),
                                        dataset.next(kSequences, kLength)};
    StepContext context;
    context.seed = 5;
    context.step = number;
    context.log_statistics = number != 2;
    step.update({}, 5, step.accumulate(context, batches, 3e-3));
    const StepResults results = step.results(true, context.log_statistics);
    trail.hashes.push_back(results.weight_hash);
    trail.losses.push_back(results.mean_loss());
    trail.statistics.push_back(results.statistics);
    trail.states.push_back(delayed_states(backend, transformer));
    if (number != 2) continue;
    EvalConfig eval;
    eval.sequences = 2;
    const DataSources held_out = open_sources(eval.data, model.vocab_size, "test");
    const EvaluationInputs inputs;
    Evaluator evaluator(backend, parameters, transformer, eval, held_out, inputs);
    context.log_statistics = false;
    trail.losses.push_back(evaluator.evaluate(context, true).held_out.mean);
  }
  CHECK((forgetful.discarded > 0) == forgets);
  trail.bytes = backend.memory_bytes();
  if (measured != nullptr) *measured = counter.measured;
  return trail;
}

ModelConfig deep_model(ModelConfig model) {
  model.set_layer_count(3);
  return model;
}

/// E4M3 operands of all layers, the head as well.
Recipe variant(const std::string& slots) {
  return parse_recipe("name = \"variant\"\n[slots.default]\nformat = \"e4m3fn\"\n" + slots +
                          "\n[gemm]\naccumulator = \"sm90_wgmma_fp8\"\n"
                          "schedule = \"promote:32\"\n[gemm.wgrad]\n"
                          "output = \"fp32\"\n",
                      "test.toml");
}

void check_same(const Trail& expected, const Trail& found) {
  CHECK(found.hashes == expected.hashes);
  CHECK(found.losses == expected.losses);
  CHECK(found.states == expected.states);
  REQUIRE(found.statistics.size() == expected.statistics.size());
  for (std::size_t i = 0; i < expected.statistics.size(); ++i) {
    CHECK(are_same(found.statistics[i], expected.statistics[i]));
  }
}

void check_all_choices(const ModelConfig& model, const Recipe& recipe) {
  INFO(recipe.name);
  int measured = 0;
  const Trail expected = train(model, recipe, {}, &measured, false);
  REQUIRE(expected.hashes[0] != expected.hashes[2]);
  check_same(expected, train(model, recipe, {}));
  const MemoryConfig choices[] = {{Recompute::gate_up, WeightCodes::keep, 0},
                                  {Recompute::feed_forward, WeightCodes::keep, 0},
                                  {Recompute::layer, WeightCodes::keep, 0},
                                  {Recompute::none, WeightCodes::remake, 0},
                                  {Recompute::layer, WeightCodes::remake, 0}};
  for (const MemoryConfig& memory : choices) {
    INFO(static_cast<int>(memory.recompute) << " " << static_cast<int>(memory.weight_codes));
    int again = 0;
    const Trail found = train(model, recipe, memory, &again);
    check_same(expected, found);
    CHECK(again == measured);
    if (memory.recompute != Recompute::none) CHECK(found.bytes < expected.bytes);
  }
}

}  // namespace

TEST_CASE("recomputed activations and remade weights leave the bits of built-in recipes") {
  const char* name = GENERATE("bf16", "infir2", "te_delayed", "nvfp4", "halo1_fp8", "quartet",
                              "fp4_occ", "fp4_dge", "deepseek_v3", "fp8_lm", "intel_delayed",
                              "smooth_swiglu", "lns8", "switchback_int8");
  check_all_choices(deep_model(fp8lab::test::small_model()), load_recipe(name));
}

TEST_CASE("the same of every family of models") {
  const ModelConfig model = GENERATE(fp8lab::test::qwen3_model(), fp8lab::test::biased_model(),
                                     fp8lab::test::gpt2_model(), fp8lab::test::olmo2_model(),
                                     fp8lab::test::mixed_model());
  for (const char* name : {"bf16", "infir2"})
    check_all_choices(deep_model(model), load_recipe(name));
}

TEST_CASE("the same of random roundings, delayed scales, and what is made from codes") {
  const ModelConfig model = deep_model(fp8lab::test::small_model());
  check_all_choices(model, variant("tile = \"1x32\"\nrounding = \"stochastic\""));
  check_all_choices(model, variant("scale_source = \"delayed\"\nhistory = 2\n"
                                   "rounding = \"stochastic\""));
  check_all_choices(model, variant("scale_source = \"delayed\"\nhistory = 2\n"
                                   "warmup_steps = 2"));
  check_all_choices(model, variant("tile = \"tensor\"\nrounding = \"stochastic\"\n"
                                   "[slots.wgrad.x]\norientation_source = \"requantized\"\n"
                                   "[slots.dgrad.w]\norientation_source = \"requantized\""));
  check_all_choices(model, variant("tile = \"tensor\"\ntransform = \"smooth:0.5\""));
}

TEST_CASE("the same of activations that are saved as codes") {
  const ModelConfig model = GENERATE(fp8lab::test::small_model(), fp8lab::test::qwen3_model(),
                                     fp8lab::test::gpt2_model(), fp8lab::test::olmo2_model());
  // The residual stream is saved as it is: recomputation begins with it.
  const std::string saved =
      "[saved_activations]\ndefault = \"e4m3fn/1x16/stochastic\"\ninput = \"bf16\"\n"
      "middle = \"bf16\"\n";
  for (const char* base : {"bf16", "infir2", "deepseek_v3"}) {
    for (const char* product : {"", "mlp.activated = \"recompute\"\n"}) {
      INFO(base << " " << product);
      const std::string text = "base = \"" + std::string(base) + "\"\nname = \"saved\"\n";
      check_all_choices(deep_model(model), parse_recipe(text + saved + product, "test.toml"));
    }
  }
}

TEST_CASE("codes of every activation survive what is given up") {
  const ModelConfig model = GENERATE(fp8lab::test::small_model(), fp8lab::test::gpt2_model(),
                                     fp8lab::test::olmo2_model(), fp8lab::test::munit_model());
  for (const char* base : {"bf16", "infir2"}) {
    const Recipe recipe = parse_recipe("base = \"" + std::string(base) +
                                           "\"\nname = \"saved\"\n[saved_activations]\n"
                                           "default = \"e4m3fn/1x16\"\n"
                                           "mlp.activated = \"recompute\"\n",
                                       "test.toml");
    for (const std::int64_t chunk : {0, 32}) {
      const MemoryConfig memory{Recompute::none, WeightCodes::keep, chunk};
      check_same(train(deep_model(model), recipe, memory, nullptr, false),
                 train(deep_model(model), recipe, memory));
    }
  }
}

namespace {

/// One forward and backward pass over two micro-batches.
struct Passed {
  double loss = 0;
  std::vector<float> token_losses;                         ///< of the last micro-batch
  std::vector<std::vector<float>> gradients;               ///< in the order of the parameters
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;  ///< of the head's quantizations
  std::int64_t head_quantizations = 0;
  std::size_t bytes = 0;
};

/// The quantizations of the head's activations.
class HeadKeys final : public OperationObserver {
 public:
  explicit HeadKeys(std::uint32_t head) : head_(head) {}
  void after(const AnyOperation& op, const Label& label) override {
    if (const auto* const* made = std::get_if<const ops::ProduceQuantize*>(&op)) {
      add((*made)->first.key, label);
    } else if (const auto* const* one = std::get_if<const ops::Quantize*>(&op)) {
      add((*one)->operand.key, label);
    } else if (const auto* const* both = std::get_if<const ops::QuantizeBoth*>(&op)) {
      add((*both)->first.key, label);
    }
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  std::int64_t count = 0;

 private:
  void add(const RandomKey& key, const Label& label) {
    if (linear_of(key) != head_ || tensor_of(key) == Tensor::w) return;
    CHECK(label.layer == "lm_head");
    CHECK(label.tensor == tensor_name(tensor_of(key)));
    // Chunk after chunk, each forward and backward.
    const bool is_forward = tensor_of(key) == Tensor::x;
    if (key.orientation == 0) CHECK(label.phase == (is_forward ? Phase::forward : Phase::backward));
    keys.insert({key.tensor, key.orientation});
    ++count;
  }
  std::uint32_t head_;
};

Passed pass(const ModelConfig& model, const Recipe& recipe, std::int64_t loss_chunk) {
  const auto cpu = make_backend("cpu", 1);
  Forgetful forgetful(*cpu);
  ObservedBackend backend(loss_chunk > 0 ? static_cast<Backend&>(forgetful) : *cpu);
  Parameters parameters(backend, model, {}, recipe.activation_dtype);
  parameters.initialize(3);
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::prompt_response, 3, 0);
  MemoryConfig memory;
  memory.loss_chunk = loss_chunk;
  Transformer transformer(backend, parameters, model, recipe,
                          BatchShape{kSequences, kLongLength, {}, memory});
  const StepBlock block(backend);
  HeadKeys keys(static_cast<std::uint32_t>(transformer.linears().size() - 1));
  backend.observe(&keys);
  const std::vector<Batch> batches = {dataset.next(kSequences, kLongLength),
                                      dataset.next(kSequences, kLongLength)};
  StepContext context;
  context.step = 1;
  const TrainingStep step{backend, parameters, transformer, block, likelihood()};
  step.accumulate(context, batches, 1e-3);
  Passed passed;
  passed.loss = step.results().mean_loss();
  passed.token_losses.resize(kSequences * kLongLength);
  download_floats(backend, transformer.token_losses(), passed.token_losses);
  for (const Parameter& parameter : parameters.all()) {
    passed.gradients.emplace_back(static_cast<std::size_t>(parameter.gradient().size()));
    download_floats(backend, parameter.gradient(), passed.gradients.back());
  }
  passed.keys = keys.keys;
  passed.head_quantizations = keys.count;
  passed.bytes = backend.memory_bytes();
  return passed;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("chunks of the loss change one sum: that of the gradient of the head's weight") {
  const ModelConfig model = GENERATE(fp8lab::test::small_model(), fp8lab::test::biased_model());
  // Of the last two the head is quantized, in groups of 32 tokens at most.
  const Recipe recipe =
      GENERATE(load_recipe("bf16"), load_recipe("infir2"), load_recipe("te_delayed"),
               variant("tile = \"1x32\""), variant("scale_source = \"none\""));
  const Passed whole = pass(model, recipe, 0);
  const std::size_t head = model.tie_word_embeddings ? 0 : whole.gradients.size() - 1;
  for (const std::int64_t chunk : {32, 64, 128}) {
    INFO(recipe.name << ", chunks of " << chunk);
    const Passed found = pass(model, recipe, chunk);
    CHECK(found.loss == whole.loss);
    CHECK(found.token_losses == whole.token_losses);
    for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
      INFO(i);
      if (i == head && chunk < kSequences * kLongLength) {
        CHECK(relative_distance(whole.gradients[i], found.gradients[i]) < 1e-5);
      } else {
        CHECK(found.gradients[i] == whole.gradients[i]);
      }
    }
    CHECK((found.bytes < whole.bytes) == (chunk < kSequences * kLongLength));
  }
}

TEST_CASE("each chunk of the loss draws random bits of its own") {
  const Recipe recipe = variant("tile = \"1x32\"\nrounding = \"stochastic\"");
  const Passed whole = pass(fp8lab::test::small_model(), recipe, 0);
  const Passed found = pass(fp8lab::test::small_model(), recipe, 32);
  REQUIRE(whole.head_quantizations == static_cast<std::int64_t>(whole.keys.size()));
  CHECK(found.head_quantizations == 4 * whole.head_quantizations);
  CHECK(found.head_quantizations == static_cast<std::int64_t>(found.keys.size()));
  CHECK(relative_distance(whole.gradients[1], found.gradients[1]) < 0.5);
}

TEST_CASE("chunks of the loss go with what is computed again") {
  const ModelConfig model = deep_model(fp8lab::test::small_model());
  for (const Recipe& recipe :
       {load_recipe("infir2"), variant("tile = \"1x32\"\nrounding = \"stochastic\"")}) {
    int measured = 0, again = 0;
    const Trail expected =
        train(model, recipe, {Recompute::none, WeightCodes::keep, 32}, &measured, false);
    check_same(expected, train(model, recipe, {Recompute::layer, WeightCodes::remake, 32}, &again));
    CHECK(measured == again);
    train(model, recipe, {}, &again);
    CHECK(measured == again);  // of the first chunk
  }
}

TEST_CASE("an evaluation in chunks has the bits of one without") {
  const ModelConfig model = fp8lab::test::small_model();
  const Recipe recipe = load_recipe("infir2");
  const auto backend = make_backend("cpu", 1);
  Parameters parameters(*backend, model, {}, recipe.activation_dtype);
  parameters.initialize(3);
  EvalConfig eval;
  eval.data.form = DataForm::prompt_response;
  eval.sequences = 2;
  eval.sharpness = 5e-4;
  eval.exact_match = 4;
  eval.max_new_tokens = 3;
  eval.rollout = RolloutConfig{};
  eval.rollout->prompts = 4;
  const DataSources held_out = open_sources(eval.data, model.vocab_size, "test");
  const auto evaluate = [&](std::int64_t chunk) {
    MemoryConfig memory;
    memory.loss_chunk = chunk;
    Transformer transformer(*backend, parameters, model, recipe, BatchShape{1, 128, {}, memory});
    const EvaluationInputs inputs;
    Evaluator evaluator(*backend, parameters, transformer, eval, held_out, inputs);
    const Evaluation result = evaluator.evaluate({}, true);
    std::vector<double> numbers = {result.held_out.mean,
                                   static_cast<double>(result.exact_match->right)};
    for (const Score& score : scores_of(result)) numbers.push_back(score.value);
    return numbers;
  };
  const std::vector<double> whole = evaluate(0);
  REQUIRE(whole.size() > 6);
  CHECK(evaluate(32) == whole);
  CHECK(evaluate(2) == whole);  // fewer than prompts are decoded together
}
