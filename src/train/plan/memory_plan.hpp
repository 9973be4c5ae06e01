// Plans the backend memory of a stage and checks that it can run, without allocating it.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab {

/// Bytes a stage holds in backend memory, and those of its checkpoints.
struct MemoryPlan {
  std::int64_t parameters = 0;   ///< master, working copy, gradient and moments
  std::int64_t activations = 0;  ///< saved by each layer for its backward pass
  std::int64_t operands = 0;     ///< quantized weights, codes kept for backward, scales, states
  std::int64_t buffers = 0;      ///< shared by layers (Workspace)
  std::int64_t caches = 0;  ///< of evaluations: key-value caches, and the model of a rollout recipe
  std::int64_t checkpoint = 0;      ///< size of the file: weights, moments and states
  std::int64_t frozen_weights = 0;  ///< number of weights without gradient and moments
  std::int64_t total() const { return parameters + activations + operands + buffers + caches; }
};

/// Returns the bytes that a run in `stage` allocates on `backend`, counted on a recording of it.
/// `held_out`: the opened data of the stage's evaluation, whose prompts determine the length of
/// key-value caches; null: the sequence length. Throws Error naming stage and recipe if the stage
/// cannot run (validate_stage).
MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       const Backend& backend, const DataSources* held_out = nullptr);

/// Throws Error if a layer cannot run under the recipe of the stage or of its rollouts: a transform
/// that does not fit, or a quantization, GEMM or statistic that `backend` does not support.
void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend);

/// Returns the largest plan of the stage over its recipes.
MemoryPlan largest_plan(const RunConfig& config, const StageConfig& stage, const Backend& backend);

}  // namespace fp8lab
