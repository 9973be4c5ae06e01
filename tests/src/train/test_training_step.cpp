// The number of a step stands in backend memory while the step runs.
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "emulation/recording/work_log.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

Recipe stochastic_recipe() {
  Recipe recipe = load_recipe("infir2");
  for (const Slot slot : kSlots)
    recipe.linear.slots[slot].rounding = numerics::Rounding::stochastic;
  return recipe;
}

std::vector<std::vector<double>> gradients(ModelAtWork& work) {
  std::vector<std::vector<double>> all;
  for (const Parameter& parameter : work.parameters.all()) all.push_back(work.gradient(parameter));
  return all;
}

/// Runs everything, and compares what repeats with what ran before in its place.
class Repeating final : public PassThrough {
 public:
  explicit Repeating(Backend& original) : PassThrough(original) {}

  void upload(const TensorView& destination, const void* source) override {
    CHECK_FALSE(inside_);
    PassThrough::upload(destination, source);
  }
  void download_all(std::span<const Download> downloads) override {
    CHECK_FALSE(inside_);
    PassThrough::download_all(downloads);
  }
  void repeat(std::unique_ptr<Recorded>& recorded, const std::function<void()>& enqueue) override {
    log_.clear();
    inside_ = true;
    enqueue();
    inside_ = false;
    auto* kept = static_cast<Kept*>(recorded.get());
    if (kept == nullptr) {
      recorded = std::make_unique<Kept>();
      static_cast<Kept&>(*recorded).log = log_;
      return;
    }
    ++repeats;
    REQUIRE(log_.size() == kept->log.size());
    for (const auto& [key, kind] : log_) {
      INFO(key);
      REQUIRE(kept->log.count(key) == 1);
      CHECK(kind.calls == kept->log.at(key).calls);
      CHECK(kind.work == kept->log.at(key).work);
    }
  }
#define FP8LAB_OPERATION(Name)             \
  void run(const ops::Name& op) override { \
    add(log_, op);                         \
    original().run(op);                    \
  }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  int repeats = 0;

 private:
  struct Kept final : Recorded {
    WorkLog log;
  };
  WorkLog log_;
  bool inside_ = false;
};

}  // namespace

TEST_CASE("random bits of a training step follow its number") {
  ModelAtWork work("cpu", fp8lab::test::small_model(), stochastic_recipe());
  const StepBlock block(*work.backend);
  const auto of_step = [&](std::uint32_t number) {
    StepContext context;
    context.seed = 5;
    context.step = number;
    TrainingStep{*work.backend, work.parameters, *work.transformer, block, likelihood()}.accumulate(
        context, std::span(&work.batch, 1), 1e-3);
    return gradients(work);
  };
  const auto third = of_step(3);
  CHECK(third != of_step(4));
  CHECK(third == of_step(3));

  // The same passes with the number in the keys themselves.
  StepContext context;
  context.seed = 5;
  context.step = 3;
  begin_step(*work.backend, block.scalars, 1e-3, work.batch.trained_tokens);
  work.parameters.zero_gradients();
  work.transformer->prepare_weights(context);
  work.transformer->load(work.batch);
  work.transformer->forward(context);
  likelihood().run(*work.transformer, block.scalars, Leaves::gradient);
  work.transformer->backward(context);
  CHECK(third == gradients(work));
}

TEST_CASE("what a step gives to be repeated is the same every time") {
  const char* name = GENERATE("bf16", "infir2", "te_delayed");
  Recipe recipe = load_recipe(name);
  for (QuantSpec& slot : recipe.linear.slots) {
    if (slot.scale_source == ScaleSource::delayed) slot.warmup_steps = 3;
  }
  const auto cpu = make_backend("cpu", 1);
  Repeating backend(*cpu);
  const ModelConfig model = fp8lab::test::small_model();
  Parameters parameters(backend, model, {}, DType::bf16);
  parameters.initialize(1);
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
  Transformer transformer(backend, parameters, model, recipe, BatchShape{2, 32, {}});
  const StepBlock block(backend);
  const TrainingStep step{backend, parameters, transformer, block, likelihood()};
  UpdateSpec spec;
  const auto take = [&](std::uint32_t number, bool logged) {
    const std::vector<Batch> batches = {dataset.next(2, 32), dataset.next(2, 32)};
    StepContext context;
    context.step = number;
    context.log_statistics = logged;
    step.update(spec, 1, step.accumulate(context, batches, 1e-3));
  };
  for (std::uint32_t number = 1; number <= 9; ++number) take(number, number % 3 == 1);
  // Two micro-batches, norm and update; a logged micro-batch comes first for the first time.
  const bool warms_up = std::string(name) == "te_delayed";
  CHECK(backend.repeats == (warms_up ? 19 : 31));
  const int before = backend.repeats;
  spec.weight_decay = 0.0f;  // another update, which must not be taken for the one before
  take(10, false);
  CHECK(backend.repeats == before + 2);
}
