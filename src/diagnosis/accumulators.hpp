// One checkpoint evaluated as different tensor cores accumulate.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// `recipe` with `accumulator` in every GEMM that it can compute there (refuse_gemm); the others
/// stay as they are.
Recipe with_accumulator(const Recipe& recipe, const Accumulator& accumulator);

struct AccumulatorEvaluation {
  std::string accumulator;   ///< accumulator_name; empty: the run as it is
  std::string evidence;      ///< evidence_name, or "custom"; empty for the run as it is
  std::int64_t layers = 0;   ///< linear layers whose fprop has it
  std::string kept_because;  ///< why the first of the other layers keeps its own; empty: none does
  std::optional<double> loss;  ///< held-out, in nats; nothing for a stage without an evaluation
  /// Of all logits of the batch, and the difference from those of the run as it is.
  double logit_rms = 0, difference_rms = 0, difference_largest = 0;
};

/// Evaluates `run` as it is, then with each of `accumulators`: the held-out loss of its stage on
/// `held_out` (null: none), and the logits of `step`. Throws Error naming the accumulator that no
/// linear layer can use.
std::vector<AccumulatorEvaluation> evaluate_accumulators(
    Backend& backend, const CheckpointedRun& run, const StepBatch& step,
    const DataSources* held_out, const std::vector<Accumulator>& accumulators,
    const std::function<void(const std::string&)>& progress);

}  // namespace fp8lab
