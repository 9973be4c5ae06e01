// Held-out loss and greedy exact match, in the numerics of the stage's recipe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// The evaluation of one stage: buffers allocated once.
class Evaluator {
 public:
  /// `transformer`, `backend` and `data`, which is config.data opened, must outlive the evaluator.
  /// Answers are asked for only where the ids of `data` can be read as text.
  Evaluator(Backend& backend, Transformer& transformer, const EvalConfig& config,
            const DataSources& data);

  /// Mean loss in nats per unmasked token over the configured number of packed sequences (rounded
  /// up to whole micro-batches), always the same ones.
  double held_out_loss(const StepContext& context);

  struct ExactMatch {
    std::int64_t asked = 0;
    std::int64_t correct = 0;
  };
  /// Greedy answers to the first problems whose prompt and answer fit into a sequence; an answer
  /// counts when its number after "####" equals the reference's. Several problems share a sequence,
  /// separated like packed documents, so tensor-wide scales see the whole micro-batch.
  ExactMatch exact_match(const StepContext& context);

 private:
  struct Problem {
    std::string expected;  ///< final answer
    std::int64_t prompt_length = 0;
    std::vector<std::int32_t> tokens;  ///< prompt, then what was generated
    bool finished = false;
  };
  std::vector<Problem> choose_problems() const;
  void extend(const StepContext& context, std::vector<Problem*>& group, std::int64_t slot);

  Backend& backend_;
  Transformer& transformer_;
  EvalConfig config_;
  const DataSources& data_;
  TensorView scalars_;
};

}  // namespace fp8lab
