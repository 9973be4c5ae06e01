// The number of a step stands in backend memory while the step runs.
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "src/objectives/cross_entropy.hpp"
#include "src/train/training_step.hpp"
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

}  // namespace

TEST_CASE("random bits of a training step follow its number") {
  ModelAtWork work("cpu", fp8lab::test::small_model(), stochastic_recipe());
  const StepBlock block(*work.backend);
  const auto of_step = [&](std::uint32_t number) {
    StepContext context;
    context.seed = 5;
    context.step = number;
    TrainingStep{*work.backend, work.parameters, *work.transformer, block}.accumulate(
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
  objectives::cross_entropy(*work.transformer, block.scalars, objectives::Leaves::gradient);
  work.transformer->backward(context);
  CHECK(third == gradients(work));
}
