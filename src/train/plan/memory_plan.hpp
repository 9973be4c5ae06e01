// What a stage needs of backend memory and whether it can run, before there is any of it.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab {

/// Bytes a stage holds in backend memory, and those of its checkpoints.
struct MemoryPlan {
  std::int64_t parameters = 0;      ///< master, working copy, gradient and moments
  std::int64_t activations = 0;     ///< that each layer saves for backward
  std::int64_t operands = 0;        ///< quantized weights, codes kept for backward, scales, states
  std::int64_t buffers = 0;         ///< that layers use one after another (Workspace)
  std::int64_t caches = 0;          ///< of evaluations: key-value caches, a rollout recipe's model
  std::int64_t checkpoint = 0;      ///< of a file beside them: weights, moments and states
  std::int64_t frozen_weights = 0;  ///< number of weights without gradient and moments
  std::int64_t total() const { return parameters + activations + operands + buffers + caches; }
};

/// What a run that is in `stage` allocates on `backend`, from what its parts allocate when they are
/// made on a recording of it. The length of key-value caches is that of the prompts of `held_out`,
/// the opened data of the stage's evaluation; null: they are as long as sequences. Throws Error
/// naming the stage and the recipe for what cannot run there, see validate_stage.
MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       const Backend& backend, const DataSources* held_out = nullptr);

/// Throws Error when a layer of the model cannot run under the stage's recipe or that of its
/// rollouts: a transform that does not fit, a quantization or product that `backend` refuses; and
/// for statistics that it does not take.
void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend);

/// The largest plan of the stage under one of its recipes.
MemoryPlan largest_plan(const RunConfig& config, const StageConfig& stage, const Backend& backend);

}  // namespace fp8lab
