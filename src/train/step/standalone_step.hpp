// A training step outside a run, for plans and for speed measurements.
#pragma once

#include <memory>
#include <span>

#include "src/train/step/run_memory.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {

/// Memory and model of one stage of a run, after the warm-up of delayed scales.
struct StandaloneStep {
  StandaloneStep(Backend& backend, const RunConfig& config, const StageConfig& stage,
                 const Recipe& recipe);

  /// Enqueues one whole step; measures operands if `statistics`.
  void take(std::span<const Batch> batches, const UpdateSpec& optimizer, bool statistics = false);
  /// Enqueues the forward passes of a held-out loss; the weights are quantized once.
  void take_losses(std::span<const Batch> batches);
  TrainingStep step() {
    return {backend, memory.parameters, *transformer, memory.step, *objective, &memory.shards};
  }

  Backend& backend;
  RunMemory memory;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Transformer> transformer;
};

/// Returns a micro-batch of random tokens and targets with one document a sequence; columns of the
/// objective are 1.
Batch random_batch(const StageConfig& stage, std::int64_t vocab_size);

/// Fills matrices with uniform numbers of the standard deviation of initial weights, and vectors
/// with ones. The speed of an emulated GEMM and the clock of a GPU depend on the values.
void fill_with_noise(Parameters& parameters);

}  // namespace fp8lab
