// What a run will do and need, told before it starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Bytes a stage holds in backend memory.
struct MemoryPlan {
  std::int64_t parameters = 0;   ///< master, working copy, gradient and moments
  std::int64_t activations = 0;  ///< saved for backward, and their gradients
  std::int64_t operands = 0;     ///< quantized weights, and the shared operand buffers
  /// Key-value caches of what the evaluation generates, at most; not the quantized weights of a
  /// rollout recipe of its own.
  std::int64_t caches = 0;
  std::int64_t total() const { return parameters + activations + operands + caches; }
};

/// What a stage allocates on `backend`, to within the rounding of allocations, states of delayed
/// scaling and factors of smoothing.
MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       const Backend& backend);

/// Throws Error when a layer of the model cannot run under the stage's recipe: a transform that
/// does not fit, or a quantization that `backend` lacks; and for statistics of what `backend` does
/// not quantize.
void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend);

/// Throws Error when a stage needs more memory than this machine has: how much, what for, and how
/// much there is. The memory of a device is not looked at; its backend refuses what does not fit.
void require_memory_of(const RunConfig& config, const Backend& backend);

/// The warnings of a stage's recipe, each once with the layers it is for, "layers.*.mlp.down (12
/// layers): ...".
std::vector<std::string> stage_warnings(const RunConfig& config, const StageConfig& stage,
                                        const Recipe& recipe);

/// The text of `train --dry-run`: recipe table, warnings, parameters, memory, and a time estimate
/// from operations timed on `backend`; `phase` is told what takes time.
std::string describe_plan(const RunConfig& config, Backend& backend,
                          const std::function<void(const std::string&)>& phase);

}  // namespace fp8lab
