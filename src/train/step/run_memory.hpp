// Everything that a run allocates in backend memory.
#pragma once

#include <memory>
#include <optional>

#include "src/config/config.hpp"
#include "src/model/transformer.hpp"
#include "src/train/step/ranks.hpp"
#include "src/train/step/shard_sums.hpp"
#include "src/train/step/training_step.hpp"
#include "src/train/watch/swiglu_alignment.hpp"

namespace fp8lab {

/// Allocations that live as long as the run.
struct RunMemory {
  /// `recipe` is the recipe of the run: its activation type is that of the working copy of the
  /// weights. Sources of error that the run replaces are removed from it, as in make_transformer.
  RunMemory(Backend& backend, const RunConfig& config, const Recipe& recipe,
            Ranks& ranks = one_rank());

  Parameters parameters;
  StepBlock step;
  ShardSums shards;
  std::optional<SwigluAlignment>
      alignment;  ///< set if early warnings are enabled and operands are logged
};

/// Builds the model of `stage` under `recipe` without the sources of error that the run replaces. A
/// backend of backend_with_exact_sources() computes those exactly.
std::unique_ptr<Transformer> make_transformer(Backend& backend, const Parameters& parameters,
                                              const RunConfig& config, const StageConfig& stage,
                                              const Recipe& recipe);

}  // namespace fp8lab
