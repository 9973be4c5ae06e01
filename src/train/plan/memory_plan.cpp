#include "src/train/plan/memory_plan.hpp"

#include <fmt/format.h>

#include <optional>

#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/recording/recording_backend.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/step/run_memory.hpp"

namespace fp8lab {
namespace {

EvaluationTexts texts_of(const StageConfig& stage, const DataSources* held_out) {
  if (held_out == nullptr) return {stage.sequence_length, 0};
  return fp8lab::texts_of(*stage.eval, *held_out,
                          problems_of(*stage.eval, *held_out, stage.sequence_length));
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       const Backend& backend, const DataSources* held_out) {
  RecordingBackend memory(backend);
  const auto held = [&] { return static_cast<std::int64_t>(memory.memory_bytes()); };
  MemoryPlan plan;
  RunMemory run(memory, config, load_recipe(config.recipe, config.recorded));
  plan.parameters = held();
  for (const Parameter& parameter : run.parameters.all()) {
    if (!parameter.is_trained()) plan.frozen_weights += parameter.declaration.size();
  }
  const auto transformer =
      at_place(fmt::format("stage {}, recipe {}", stage.name, recipe.name),
               [&] { return make_transformer(memory, run.parameters, config, stage, recipe); });
  plan.operands = static_cast<std::int64_t>(transformer->operand_bytes());
  plan.buffers = static_cast<std::int64_t>(transformer->buffer_bytes());
  plan.activations = held() - plan.parameters - plan.operands - plan.buffers;
  for_each_state({memory, run.parameters, run.step.scalars, transformer->operand_sets()},
                 [&](const std::string&, const TensorView& view) {
                   plan.checkpoint += view.size() * static_cast<std::int64_t>(size_of(view.dtype));
                 });
  if (!stage.eval) return plan;
  at_place(fmt::format("stage {}", stage.name), [&] {
    std::optional<Recipe> rollout;
    if (stage.eval->rollout && !stage.eval->rollout->recipe.empty()) {
      rollout = load_recipe(stage.eval->rollout->recipe, config.recorded);
    }
    const EvaluationMemory evaluation(memory, run.parameters, *transformer, *stage.eval,
                                      texts_of(stage, held_out), rollout ? &*rollout : nullptr);
  });
  plan.caches = held() - plan.total();
  return plan;
}

void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend) {
  check_exact_sources(config, backend);
  if (config.logging.statistics_every_steps > 0) {
    const QuantizedOperand operand =
        QuantizedOperand::without_memory(recipe.linear.slot(kSlots.front()), 1, 1);
    const Support support = backend.supports(ops::MeasureOperand{
        .source = TensorView::without_memory(DType::f32, 1, 1), .operand = operand, .record = {}});
    if (!support) {
      throw InputError(
          {.reason = support.reason, .remedy = "set logging.statistics_every_steps=0"});
    }
  }
  plan_memory(config, stage, recipe, backend);
}

MemoryPlan largest_plan(const RunConfig& config, const StageConfig& stage, const Backend& backend) {
  MemoryPlan largest;
  for (const StageRecipe& recipe : recipes_of(config, stage)) {
    const MemoryPlan plan =
        plan_memory(config, stage, load_recipe(recipe.name, config.recorded), backend);
    if (plan.total() > largest.total()) largest = plan;
  }
  return largest;
}

}  // namespace fp8lab
