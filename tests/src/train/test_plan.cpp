// What --dry-run promises, against what a stage allocates.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/recording/stand_in.hpp"
#include "src/backend/factory.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/files/background_file.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/plan/memory_fit.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/plan/plan.hpp"
#include "src/train/step/run_memory.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/error_fields.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

StageConfig small_stage() {
  StageConfig stage;
  stage.name = "s";
  stage.batch_sequences = stage.micro_batch_sequences = 2;
  stage.sequence_length = 128;
  return stage;
}

RunConfig run_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  config.optimizer.second_moment = plain_state(DType::bf16);
  return config;
}

Batch first_batch(const StageConfig& stage) {
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
  return dataset.next(stage.micro_batch_sequences, stage.sequence_length);
}

/// Makes what Trainer holds for the stage and takes a step: the plan has every byte of it.
void check_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  const std::string& backend_name = "cpu") {
  INFO(recipe.name << " on " << backend_name);
  const auto backend = make_backend(backend_name, 1);
  std::optional<DataSources> data;
  if (stage.eval) data = open_sources(stage.eval->data, config.model.vocab_size, "test");
  const MemoryPlan plan = plan_memory(config, stage, recipe, *backend, data ? &*data : nullptr);
  const auto held = [&] { return static_cast<std::int64_t>(backend->memory_bytes()); };

  RunMemory run(*backend, config, load_recipe(config.recipe));
  CHECK(held() == plan.parameters);
  run.parameters.initialize(1);
  const auto transformer = make_transformer(*backend, run.parameters, config, stage, recipe);
  CHECK(held() == plan.total() - plan.caches);
  CHECK((plan.operands > 0 && plan.buffers > 0));
  std::int64_t checkpoint = 0;
  for_each_state(
      {*backend, run.parameters, run.step.scalars, transformer->operand_sets()},
      [&](const std::string&, const TensorView& view) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
        backend->download(bytes.data(), view);
        checkpoint += static_cast<std::int64_t>(bytes.size());
      });
  CHECK(checkpoint == plan.checkpoint);
  std::unique_ptr<Evaluator> evaluator;
  EvaluationInputs inputs;
  if (stage.eval) {
    inputs =
        read_evaluation_inputs(*stage.eval, *data, config.model, stage.sequence_length, "eval");
    evaluator = std::make_unique<Evaluator>(*backend, run.parameters, *transformer, *stage.eval,
                                            *data, inputs);
  }
  const std::vector<Batch> batches = {first_batch(stage)};
  const TrainingStep step{*backend, run.parameters, *transformer, run.step, likelihood()};
  step.update(config.optimizer.update, 1, step.accumulate(StepContext{}, batches, 1e-3));
  if (evaluator) evaluator->evaluate(StepContext{}, true);
  CHECK(held() == plan.total());
  CHECK((plan.caches > 0) == stage.eval.has_value());
}

/// int8 operands with `transform`.
Recipe transformed(const std::string& transform) {
  return parse_recipe(
      "name = \"transformed\"\n[slots.default]\nformat = \"int8\"\ntile = \"tensor\"\n"
      "transform = \"" +
          transform + "\"\n[gemm]\naccumulator = \"sm90_bf16\"\n",
      "test.toml");
}

/// Greedy answers, samples, and rollouts in the numerics of `rollout`.
EvalConfig generation(const std::string& rollout) {
  EvalConfig eval;
  eval.data.form = DataForm::prompt_response;
  eval.sequences = 2;
  eval.exact_match = 3;
  eval.max_new_tokens = 2;
  eval.pass_at_k = PassAtKConfig{};
  eval.pass_at_k->problems = eval.pass_at_k->samples = 2;
  eval.rollout = RolloutConfig{};
  eval.rollout->prompts = 2;
  eval.rollout->recipe = rollout;
  return eval;
}

/// What a backend says of itself, without memory and without doing anything.
class Inert : public StandIn {
 public:
  explicit Inert(const Backend& original) : StandIn(original) {}

  TensorView allocate(DType, std::int64_t, std::int64_t) override { return {}; }
  std::size_t memory_mark() const override { return 0; }
  void release_to(std::size_t) override {}
  std::size_t memory_bytes() const override { return 0; }
  void upload(const TensorView&, const void*) override {}
  void download_all(std::span<const Download>) override {}
  void fill_zero(const TensorView&) override {}
  void synchronize() override {}
#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name&) override {}
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION
};

/// The CPU backend but for what it refuses.
class Refusing final : public Inert {
 public:
  using Inert::Inert;

  void accept_quantizers() { accepts_quantizers_ = true; }

  using Inert::supports;
  Support supports(const ops::Quantize& op) const override {
    const bool refused = !accepts_quantizers_ && op.operand.is_right && op.transpose;
    return {refused ? "no transposed right operand" : ""};
  }
  Support supports(const ops::Gemm& op) const override {
    return {op.accumulate ? "no accumulation" : ""};
  }

 private:
  bool accepts_quantizers_ = false;
};

}  // namespace

TEST_CASE("planned memory is to the byte what a stage allocates") {
  const StageConfig stage = small_stage();
  for (const char* name :
       {"bf16", "fp32", "infir2", "te_delayed", "mxfp8", "deepseek_v3", "nvfp4", "fp4_occ"}) {
    RunConfig config = run_of(fp8lab::test::small_model());
    config.recipe = name;
    check_memory(config, stage, load_recipe(name));
  }
  RunConfig config = run_of(fp8lab::test::small_model());
  check_memory(config, stage, transformed("smooth:0.5"));
  check_memory(config, stage, transformed("clamp:0.99"));
  config.model = fp8lab::test::qwen3_model();  // normalised heads
  check_memory(config, stage, load_recipe("infir2"));
  config.model = fp8lab::test::biased_model();  // biases, and a head of its own
  check_memory(config, stage, load_recipe("infir2"));
  config.model = fp8lab::test::gpt2_model();  // positions in a table, a mean for each token
  config.model.max_position_embeddings = 4096;
  check_memory(config, stage, load_recipe("infir2"));
  config.optimizer.weights = config.optimizer.gradients =
      plain_state(DType::bf16);  // no FP32 master
  check_memory(config, stage, load_recipe("infir2"));
  check_memory(config, stage, load_recipe("bf16"));
  config.optimizer = {};
  config.model = fp8lab::test::biased_model();
  config.optimizer.update.rule = UpdateRule::muon;
  check_memory(config, stage, load_recipe("infir2"));
  config.optimizer.first_moment = plain_state(DType::bf16);  // its momentum is decoded
  check_memory(config, stage, load_recipe("infir2"));
  config.optimizer.groups = {{.match = "layers.*.mlp", .rule = GroupRule::adamw},
                             {.match = "embed", .rule = GroupRule::muon}};
  check_memory(config, stage, load_recipe("infir2"));
  config.optimizer = {};
  // A stage in another recipe than the run's, whose activations the working copy does not have.
  check_memory(config, stage, load_recipe("fp32"));
  config.recipe = "fp32";
  check_memory(config, stage, load_recipe("bf16"), "truth");
}

TEST_CASE("runs side by side hold a copy of a checkpoint each") {
  constexpr auto kPiece = static_cast<std::int64_t>(BackgroundFile::kPiece);
  const RunNeeds small{kPiece, 3 * kPiece, true, 1.0}, large{4 * kPiece, 5 * kPiece, true, 1.0};
  const RunNeeds on_device{9 * kPiece, 3 * kPiece, false, 1.0};
  const auto check = [](const MemoryTogether& memory, std::int64_t host, std::int64_t copies,
                        std::int64_t device) {
    CHECK(memory.host == host * kPiece);
    CHECK(memory.copies == copies * kPiece);
    CHECK(memory.device == device * kPiece);
  };
  check(memory_together({small, large, small}, 1), 4, 5, 0);
  check(memory_together({small, large, small}, 2), 5, 8, 0);
  check(memory_together({small, large, small}, 9), 6, 11, 0);
  check(memory_together({small, on_device, large}, 2), 5, 8, 9);
  check(memory_together({small, on_device, on_device}, 3), 1, 9, 18);
  // What all of them hold leaves no room: each copy goes through the least.
  const RunNeeds huge{available_memory(), 3 * kPiece, true, 1.0};
  CHECK(memory_together({huge, large}, 2).copies == 4 * kPiece);
  // The later copies have half of what the earlier ones leave.
  const std::int64_t there = available_memory();
  const RunNeeds copied{0, there, true, 1.0};
  const auto copies = static_cast<double>(memory_together({copied, copied}, 2).copies);
  CHECK(copies == Approx(0.75 * static_cast<double>(there)).epsilon(0.1));
}

TEST_CASE("a quantized layer holds codes of x until the backward pass, not x") {
  RunConfig config = run_of(fp8lab::test::small_model());
  const ModelConfig& model = config.model;
  const StageConfig stage = small_stage();
  const auto backend = make_backend("cpu", 1);
  const auto plan = [&](const Recipe& recipe) {
    return plan_memory(config, stage, recipe, *backend, nullptr);
  };
  // Outputs of two norms and of the activation, of every layer.
  const std::int64_t elements = stage.micro_batch_sequences * stage.sequence_length *
                                model.layer_count() *
                                (2 * model.hidden_size + model.intermediate_size);
  const MemoryPlan whole = plan(load_recipe("bf16")), codes = plan(load_recipe("infir2"));
  // Three tensors fewer to be aligned for each layer.
  const std::int64_t saved = whole.activations - codes.activations - elements * 2;
  CHECK((saved >= 0 && saved < 3 * model.layer_count() * 128));
  // A transform of one of the operands may need x itself.
  CHECK(plan(transformed("smooth:0.5")).activations == whole.activations);
}

TEST_CASE("planned memory is to the byte what is held under each choice of [memory]") {
  const StageConfig stage = small_stage();
  for (const char* name : {"bf16", "infir2", "te_delayed", "deepseek_v3", "fp4_dge"}) {
    RunConfig config = run_of(fp8lab::test::small_model());
    config.recipe = name;
    for (const Recompute recompute : {Recompute::gate_up, Recompute::layer}) {
      config.memory = {recompute, WeightCodes::remake, 64};
      check_memory(config, stage, load_recipe(name));
    }
  }
}

TEST_CASE("choices of [memory] hold what they say, and not the rest") {
  RunConfig config = run_of(fp8lab::test::small_model());
  config.model.set_layer_count(5);
  const ModelConfig& model = config.model;
  const StageConfig stage = small_stage();
  const auto backend = make_backend("cpu", 1);
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const auto plan = [&](const char* recipe, const MemoryConfig& memory) {
    config.memory = memory;
    return plan_memory(config, stage, load_recipe(recipe), *backend, nullptr);
  };
  const MemoryPlan bf16 = plan("bf16", {}), infir2 = plan("infir2", {});
  // `bytes` of each layer, but for what aligns them, are those of one layer, in its buffers.
  const auto check_saved = [&](Recompute recompute, std::int64_t bytes) {
    const MemoryPlan found = plan("bf16", {recompute, {}, 0});
    INFO(static_cast<int>(recompute) << ", " << bytes);
    const std::int64_t all = model.layer_count() * bytes;
    const std::int64_t saved = bf16.activations - found.activations;
    CHECK((saved >= all && saved < all + 8192));
    CHECK(found.buffers >= bf16.buffers);
    CHECK(bf16.total() - found.total() >= all - bytes);
    CHECK(found.operands == bf16.operands);
  };
  // Per token of a layer, in BF16: gate, up and a norm's output, with its rstd in FP32.
  const std::int64_t gate_up = tokens * (2 * (2 * model.intermediate_size + model.hidden_size) + 4);
  check_saved(Recompute::gate_up, gate_up);
  const std::int64_t feed_forward = gate_up + tokens * 2 * model.intermediate_size;
  check_saved(Recompute::feed_forward, feed_forward);
  const std::int64_t heads = model.num_attention_heads * model.head_dim;
  const std::int64_t qkv = heads + 2 * model.num_key_value_heads * model.head_dim;
  const std::int64_t attention =
      tokens * (2 * (2 * model.hidden_size + qkv + heads) + 4 * (model.num_attention_heads + 1));
  check_saved(Recompute::layer, feed_forward + attention);

  const MemoryPlan chunks = plan("bf16", {Recompute::none, {}, 64});
  CHECK(chunks.buffers < bf16.buffers);
  CHECK(chunks.activations == bf16.activations);
  CHECK(plan("bf16", {Recompute::none, WeightCodes::remake, 0}).total() == bf16.total());
  // Two codes of a byte for each weight of a layer, and scales.
  const std::int64_t codes =
      2 * model.hidden_size * (qkv + heads + 3 * model.intermediate_size) * model.layer_count();
  const MemoryPlan remade = plan("infir2", {Recompute::none, WeightCodes::remake, 0});
  const std::int64_t saved = infir2.operands - remade.operands;
  CHECK((saved >= codes && saved < codes + codes / 16));
  CHECK(infir2.total() - remade.total() >= codes - codes / model.layer_count());
}

TEST_CASE("planned memory has what evaluations hold") {
  RunConfig config = run_of(fp8lab::test::small_model());
  StageConfig stage = small_stage();
  for (const char* rollout : {"", "infir2"}) {
    stage.eval = generation(rollout);
    check_memory(config, stage, load_recipe("infir2"));
  }
  stage.eval = EvalConfig{};
  stage.eval->sequences = 2;
  check_memory(config, stage, load_recipe("te_delayed"));
}

TEST_CASE("a stage that cannot run names itself, the recipe, the layer and the slot or GEMM") {
  const auto cpu = make_backend("cpu", 1), truth = make_backend("truth", 1);
  RunConfig config = run_of(fp8lab::test::small_model());
  StageConfig stage = small_stage();
  validate_stage(config, stage, load_recipe("infir2"), *cpu);
  check_fields(
      fields_thrown_by([&] { validate_stage(config, stage, load_recipe("bf16"), *truth); }),
      {.reason = "quantizes nothing", .remedy = "logging.statistics_every_steps=0"});
  config.logging.statistics_every_steps = 0;
  validate_stage(config, stage, load_recipe("bf16"), *truth);

  Recipe recipe = load_recipe("bf16");
  recipe.linear.slot(Slot::dgrad_dy).tile = {0, 5};
  recipe.linear.slot(Slot::dgrad_dy).scale_source = ScaleSource::current;
  const auto refused = [&](const Recipe& wrong) {
    return fields_thrown_by([&] { validate_stage(config, stage, wrong, *cpu); });
  };
  CHECK(refused(recipe).where.starts_with("stage s, recipe bf16: layers.0.attention.qkv"));
  stage.sequence_length = 8192;
  const ErrorFields long_sequence = refused(load_recipe("bf16"));
  CHECK(long_sequence.where == "stage s, recipe bf16");
  check_fields(long_sequence,
               {.key = "sequence_length", .found = "8192", .accepted = "at most 4096"});
  stage.sequence_length = 128;
  stage.eval = generation("te_delayed");
  const ErrorFields delayed = refused(load_recipe("bf16"));
  CHECK(delayed.where == "stage s: rollout recipe te_delayed");
  check_fields(delayed, {.reason = "delayed scaling needs"});
}

TEST_CASE("the layout of parameters counts what they hold") {
  const auto backend = make_backend("cpu", 1);
  for (const ModelConfig& model : {fp8lab::test::small_model(), fp8lab::test::qwen3_model(),
                                   fp8lab::test::biased_model(), fp8lab::test::gpt2_model()}) {
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

TEST_CASE("what a backend refuses is told with its slot or GEMM") {
  const auto cpu = make_backend("cpu", 1);
  Refusing backend(*cpu);
  const RunConfig config = run_of(fp8lab::test::small_model());
  const StageConfig stage = small_stage();
  const Recipe recipe = load_recipe("infir2");
  const auto refused = [&] {
    return fields_thrown_by([&] { validate_stage(config, stage, recipe, backend); });
  };
  CHECK(refused() == ErrorFields{.where = "stage s, recipe infir2: layers.0.attention.qkv: dgrad.w",
                                 .reason = "no transposed right operand"});
  backend.accept_quantizers();
  CHECK(refused() == ErrorFields{.where = "stage s, recipe infir2: layers.0.attention.qkv: wgrad",
                                 .reason = "no accumulation"});
}

TEST_CASE("without data, planned caches are as long as sequences") {
  RunConfig config = run_of(fp8lab::test::small_model());
  StageConfig stage = small_stage();
  const Recipe recipe = load_recipe("infir2");
  const auto backend = make_backend("cpu", 1);
  CHECK(plan_memory(config, stage, recipe, *backend).caches == 0);
  stage.eval = generation("");
  const DataSources data = open_sources(stage.eval->data, config.model.vocab_size, "test");
  const MemoryPlan most = plan_memory(config, stage, recipe, *backend);
  const MemoryPlan exact = plan_memory(config, stage, recipe, *backend, &data);
  CHECK(exact.caches < most.caches);
  CHECK(exact.total() - exact.caches == most.total() - most.caches);
  // Four sequences at once: keys and values of two heads of 16 in bf16, in both layers.
  const std::int64_t keys_and_values = 2 * 2 * (4 * stage.sequence_length) * (2 * 16) * 2;
  CHECK(most.caches >= keys_and_values);
  CHECK(most.caches < keys_and_values + 2048);
}

TEST_CASE("a warning of many layers is told once, with their pattern and number") {
  RunConfig config;
  config.model = load_model("tiny");
  config.model.set_layer_count(28);
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
  config.model.set_layer_count(4);
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

namespace {

/// Memory of a device, of which so much is left.
class Device final : public Inert {
 public:
  Device(const Backend& original, std::size_t free) : Inert(original), free_(free) {}

  std::string device() const override { return "the device"; }
  bool is_on_host() const override { return false; }
  std::optional<std::size_t> free_bytes() const override { return free_; }

 private:
  std::size_t free_;
};

std::string refusal_of(const RunConfig& config, const Backend& backend) {
  try {
    require_memory_of(config, backend);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("what does not fit a device is told with the cheapest changes, which fit") {
  RunConfig config;
  config.model = fp8lab::test::small_model();
  config.model.set_layer_count(6);
  config.recipe = "infir2";
  config.stages = {small_stage()};
  config.stages.front().batch_sequences = config.stages.front().micro_batch_sequences = 8;
  const auto cpu = make_backend("cpu", 1);
  const auto planned = [&](const RunConfig& run) {
    return plan_memory(run, run.stages.front(), load_recipe(run.recipe), *cpu).total();
  };
  const std::int64_t own = planned(config);
  CHECK(refusal_of(config, Device(*cpu, static_cast<std::size_t>(own))).empty());
  for (const double share : {0.999, 0.9, 0.8, 0.7, 0.6}) {
    INFO(share);
    const Device device(*cpu, static_cast<std::size_t>(share * static_cast<double>(own)));
    const std::string message = refusal_of(config, device);
    CHECK_THAT(message, Catch::StartsWith("stage s: steps of 8 x 128 tokens, 8 x 128 at once"));
    const auto free = static_cast<std::int64_t>(*device.free_bytes());
    const std::vector<MemoryChange> changes = changes_that_fit(config, device, free);
    REQUIRE(!changes.empty());
    double least = -1.0;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const MemoryChange& change = changes[i];
      INFO(describe(change));
      const RunConfig run = parse_run_config(to_toml(config), "test", change.assignments);
      CHECK(planned(run) == change.bytes);
      CHECK(change.bytes <= free);
      CHECK(change.added_work >= least);
      least = change.added_work;
      CHECK((message.find(describe(change)) != std::string::npos) == (i < 3));
      CHECK(refusal_of(run, device).empty());
    }
  }
  CHECK_THAT(refusal_of(config, Device(*cpu, 1000)),
             Catch::Contains("no setting of [memory] and no smaller micro-batch makes it fit"));
}

TEST_CASE("changes for memory are of one key each where one is enough, with cost and bits") {
  RunConfig config;
  config.model = fp8lab::test::small_model();
  config.recipe = "infir2";
  config.stages = {small_stage()};
  config.stages.front().batch_sequences = 4;  // two micro-batches
  const auto cpu = make_backend("cpu", 1);
  std::vector<std::string> keys;
  std::vector<MemoryChange> changes = changes_that_fit(config, *cpu, std::int64_t{1} << 40);
  for (const MemoryChange& change : changes) {
    REQUIRE(change.assignments.size() == 1);
    keys.push_back(change.assignments.front().key);
    CHECK(change.keeps_bits == (keys.back() != "memory.loss_chunk"));
  }
  CHECK(keys ==
        std::vector<std::string>{"memory.loss_chunk", "memory.weight_codes", "memory.recompute"});
  REQUIRE(changes.size() == 3);
  CHECK(changes[0].added_work == 0.0);
  CHECK(changes[1].added_work > 0.0);
  // One product in four of a layer's nine, of which one layer is left out.
  CHECK(changes[2].added_work > 0.02);
  CHECK(changes[2].added_work < 0.2);
  CHECK(changes[2].assignments.front().value == "gate_up");
}
