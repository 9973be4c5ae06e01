// A training step without a run around it: for plans, and to measure its speed.
#pragma once

#include <memory>
#include <span>

#include "src/train/step/run_memory.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {

/// The model of a run at work in one stage, beyond the warm-up of delayed scales.
struct StepAtWork {
  StepAtWork(Backend& backend, const RunConfig& config, const StageConfig& stage,
             const Recipe& recipe);

  /// Enqueues one whole step; operands are measured where `statistics` says so.
  void take(std::span<const Batch> batches, const UpdateSpec& optimizer, bool statistics = false);
  /// Enqueues the forward passes of a held-out loss, weights prepared once.
  void take_losses(std::span<const Batch> batches);
  TrainingStep step() {
    return {backend, memory.parameters, *transformer, memory.step, *objective, &memory.shards};
  }

  Backend& backend;
  RunMemory memory;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<Transformer> transformer;
};

/// A micro-batch of random tokens and targets, documents as long as sequences; columns of the
/// objective are 1.
Batch random_batch(const StageConfig& stage, std::int64_t vocab_size);

/// Uniform matrices of the deviation that initial weights have: the speed of an emulated GEMM, and
/// the clock of a GPU, depend on values. Vectors are ones.
void fill_with_noise(Parameters& parameters);

}  // namespace fp8lab
