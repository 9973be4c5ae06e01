// The next training step of a run after its checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/data/mixture.hpp"
#include "src/model/stress.hpp"
#include "src/model/transformer.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/step/amax_history.hpp"
#include "src/train/step/run_memory.hpp"

namespace fp8lab {

/// A run and its checkpoint.
struct CheckpointedRun {
  RunConfig config;
  OpenCheckpoint checkpoint;
  RunPosition position;     ///< position of the checkpoint
  Recipe recipe;            ///< recipe in effect at the checkpoint
  AmaxHistories histories;  ///< amax histories in the checkpoint

  /// Returns the stage in which the checkpoint was written.
  const StageConfig& stage() const {
    return config.stages[static_cast<std::size_t>(position.stage)];
  }
  /// Returns the entry of that stage which names `recipe`.
  StageRecipe stage_recipe() const;
};

/// Reads the position, recipe and histories of `checkpoint`, written by a run of `config`. Throws
/// Error if the checkpoint is damaged or its stages are not those of `config`, or if the run
/// replaces sources of error.
CheckpointedRun open_checkpointed_run(const RunConfig& config, OpenCheckpoint checkpoint);

/// The first micro-batch of a step. A run measures the operands of this micro-batch.
struct StepBatch {
  /// Its trained_tokens count the whole step: gradients are those of the mean over all its tokens.
  Batch batch;
  StepContext context;
};

/// Returns the step `skipped` steps after the next one, with the data that the run reads in it.
/// Throws Error if no token of the step is trained on. Also throws if `skipped` > 0 and a stress
/// acts in or before that step, since the checkpoint lacks the stressed weights.
StepBatch batch_of_step(const CheckpointedRun& run, const DataSources& data, std::int64_t skipped);

/// Applies the stresses of the next step to `parameters`, which hold the checkpoint's weights.
/// Permanently planted values are rounded to the storage type of the weights.
StressedStep stress_next_step(Backend& backend, Parameters& parameters, const CheckpointedRun& run);

/// The state of the run at its checkpoint, in backend memory, with the stresses of the next step.
struct CheckpointAtWork {
  CheckpointAtWork(Backend& backend, const CheckpointedRun& run);

  /// Runs the forward and backward pass of `step`. Weights and amax histories are not updated.
  void take(const StepBatch& step);

  Backend& backend;
  RunMemory memory;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Transformer> transformer;
};

}  // namespace fp8lab
