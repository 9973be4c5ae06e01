#include "src/diagnosis/checkpoint_step.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "src/train/step/execution.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {

CheckpointedRun open_checkpointed_run(const RunConfig& config, OpenCheckpoint checkpoint) {
  if (!config.exact.empty()) {
    throw Error(
        fmt::format("run {} replaces sources of error by exact arithmetic (exact = [...]); "
                    "accepted: a run of its recipe as it is",
                    config.name));
  }
  CheckpointedRun run{config,
                      checkpoint,
                      read_checkpoint(*checkpoint).position,
                      {},
                      read_amax_histories(*checkpoint)};
  run.config.memory = {};  // diagnoses need whole tensors
  check_position(run.position, config, checkpoint->path());
  run.recipe = load_recipe(run.stage_recipe().name, config.recorded);
  return run;
}

StageRecipe CheckpointedRun::stage_recipe() const {
  return recipes_of(config, stage())[static_cast<std::size_t>(position.recipe)];
}

namespace {

/// Throws Error if a stress acts up to the step `skipped` steps after the next one. Later steps run
/// on the checkpoint's weights, which lack the values that such a stress plants.
void refuse_stresses(const StageConfig& stage, std::int64_t stage_step, std::int64_t skipped) {
  for (const StressConfig& stress : stage.stress) {
    const std::int64_t end = stress.at_step + std::max<std::int64_t>(1, stress.over_steps);
    if (end <= stage_step || stress.at_step > stage_step + skipped) continue;
    throw Error(fmt::format(
        "stage {} is under stress from its step {} to {}, and the weights are those of the "
        "checkpoint after step {}; accepted: the step that follows it (--batch 1)",
        stage.name, stress.at_step + 1, end, stage_step));
  }
}

}  // namespace

StepBatch batch_of_step(const CheckpointedRun& run, const DataSources& data, std::int64_t skipped) {
  const StageConfig& stage = run.stage();
  Mixture stream = training_stream(data, run.config, stage);
  stream.seek(run.position.streams.back());
  StepBatch step;
  for (std::int64_t left = skipped; left >= 0; --left) {
    std::int64_t tokens = 0;
    for (std::int64_t done = 0; done < stage.batch_sequences; done += stage.micro_batch_sequences) {
      Batch batch = stream.next(stage.micro_batch_sequences, stage.sequence_length);
      tokens += batch.trained_tokens;
      if (done == 0) step.batch = std::move(batch);
    }
    step.batch.trained_tokens = tokens;
  }
  if (skipped > 0) refuse_stresses(stage, run.position.stage_step, skipped);
  step.context.seed = run.config.seed;
  step.context.step = static_cast<std::uint32_t>(run.position.step + 1 + skipped);
  step.context.log_statistics = true;
  if (step.batch.trained_tokens == 0) {
    throw Error(
        fmt::format("no token of step {} is trained on, so there is no gradient; accepted: "
                    "another step (--batch)",
                    step.context.step));
  }
  return step;
}

StressedStep stress_next_step(Backend& backend, Parameters& parameters,
                              const CheckpointedRun& run) {
  backend.enter({.phase = Phase::stress});
  StressedStep stressed(backend, parameters, run.stage(), run.position.stage_step, run.config.seed);
  if (stressed.has_planted()) parameters.round_weights(run.config.seed);
  return stressed;
}

CheckpointAtWork::CheckpointAtWork(Backend& memory_of, const CheckpointedRun& run)
    : backend(memory_of),
      memory(backend, run.config, load_recipe(run.config.recipe, run.config.recorded)),
      objective(make_objective(run.stage().objective)),
      transformer(
          make_transformer(backend, memory.parameters, run.config, run.stage(), run.recipe)) {
  load_checkpoint(*run.checkpoint,
                  {backend, memory.parameters, memory.step.scalars, transformer->operand_sets()});
  stress_next_step(backend, memory.parameters, run);
}

void CheckpointAtWork::take(const StepBatch& step) {
  const TrainingStep training{backend, memory.parameters, *transformer, memory.step, *objective};
  training.accumulate(step.context, {&step.batch, 1}, 0.0);
  transformer->discard_amaxes();
}

}  // namespace fp8lab
