// Evaluates one checkpoint with the accumulators of different tensor cores.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// Returns `recipe` with `accumulator` in every GEMM that refuse_gemm accepts with it. The other
/// GEMMs are unchanged.
Recipe with_accumulator(const Recipe& recipe, const Accumulator& accumulator);

struct AccumulatorEvaluation {
  std::string accumulator;   ///< accumulator_name; empty: the unchanged run
  std::string evidence;      ///< evidence_name, or "custom"; empty for the unchanged run
  std::int64_t layers = 0;   ///< number of linear layers whose fprop uses the accumulator
  std::string kept_because;  ///< reason of the first layer that keeps its own; empty: no such layer
  std::optional<double> loss;  ///< held-out loss in nats; none if the stage has no evaluation
  /// RMS of all logits of the batch; RMS and maximum of their difference from the unchanged run's.
  double logit_rms = 0, difference_rms = 0, difference_largest = 0;
};

/// Evaluates `run` unchanged, then with each of `accumulators`: the held-out loss of its stage on
/// `held_out` (null: no loss), and the logits of `step`. Throws Error that names the accumulator if
/// no linear layer can use it.
std::vector<AccumulatorEvaluation> evaluate_accumulators(
    Backend& backend, const CheckpointedRun& run, const StepBatch& step,
    const DataSources* held_out, const std::vector<Accumulator>& accumulators,
    const std::function<void(const std::string&)>& progress);

}  // namespace fp8lab
