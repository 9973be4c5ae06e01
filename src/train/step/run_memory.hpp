// What a run holds in backend memory.
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

/// From the beginning to the end of a run.
struct RunMemory {
  /// `recipe` is that of the run: the working copy of the weights has the type of its activations.
  /// Without the sources of error that the run replaces, like the model below.
  RunMemory(Backend& backend, const RunConfig& config, const Recipe& recipe,
            Ranks& ranks = one_rank());

  Parameters parameters;
  StepBlock step;
  ShardSums shards;
  std::optional<SwigluAlignment> alignment;  ///< where early warnings look at logged steps
};

/// The model at work in `stage`, under its recipe without the sources of error that the run
/// replaces, which is exact on a backend of backend_with_exact_sources().
std::unique_ptr<Transformer> make_transformer(Backend& backend, const Parameters& parameters,
                                              const RunConfig& config, const StageConfig& stage,
                                              const Recipe& recipe);

}  // namespace fp8lab
