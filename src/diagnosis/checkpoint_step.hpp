// The step that a run takes next from where its checkpoint stands.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/config/stage_recipes.hpp"
#include "src/data/mixture.hpp"
#include "src/model/stress.hpp"
#include "src/model/transformer.hpp"
#include "src/train/amax_history.hpp"
#include "src/train/checkpoint.hpp"
#include "src/train/run_memory.hpp"

namespace fp8lab {

/// A run of which there is a checkpoint.
struct CheckpointedRun {
  RunConfig config;
  OpenCheckpoint checkpoint;
  RunPosition position;     ///< of the checkpoint
  Recipe recipe;            ///< at work in the checkpoint
  AmaxHistories histories;  ///< of the checkpoint

  /// The one that the checkpoint was written in.
  const StageConfig& stage() const {
    return config.stages[static_cast<std::size_t>(position.stage)];
  }
  /// What `recipe` is of that stage.
  StageRecipe stage_recipe() const;
};

/// Where `checkpoint`, of a run of `config`, stands. Throws Error for a checkpoint that is
/// damaged or of another run's stages, and for a run that replaces sources of error.
CheckpointedRun open_checkpointed_run(const RunConfig& config, OpenCheckpoint checkpoint);

/// The first micro-batch of a step, the one whose operands a run measures.
struct StepBatch {
  /// Its trained_tokens are those of the whole step: gradients are those of the mean over them.
  Batch batch;
  StepContext context;
};

/// The step `skipped` steps after the next one, with the data that the run reads there. Throws
/// Error when no token of it is trained on, and when a stress is due in it or before, whose weights
/// the checkpoint does not have.
StepBatch batch_of_step(const CheckpointedRun& run, const DataSources& data, std::int64_t skipped);

/// Puts `parameters`, which hold the checkpoint's weights, under the stresses of the step that
/// follows; what is planted for good is rounded to their storage.
StressedStep stress_next_step(Backend& backend, Parameters& parameters, const CheckpointedRun& run);

/// The run at its checkpoint, in backend memory, under the stresses of the step that follows.
struct CheckpointAtWork {
  CheckpointAtWork(Backend& backend, const CheckpointedRun& run);

  /// Forward and backward pass of `step`. The weights stay, and so do delayed scales.
  void take(const StepBatch& step);

  Backend& backend;
  RunMemory memory;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Transformer> transformer;
};

}  // namespace fp8lab
