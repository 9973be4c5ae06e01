// Evaluates a model on held-out data in the numerics of a recipe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/answers.hpp"
#include "src/evaluation/document_sums.hpp"
#include "src/evaluation/generator.hpp"
#include "src/evaluation/multiple_choice.hpp"
#include "src/evaluation/rollout.hpp"
#include "src/evaluation/scorer.hpp"
#include "src/evaluation/stop.hpp"
#include "src/model/part_report.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// Loss in nats per unmasked token.
struct HeldOutLoss {
  struct Source {
    std::string name;
    std::int64_t tokens = 0;    ///< number of unmasked tokens
    double loss = 0;            ///< perplexity is exp(loss)
    double bits_per_byte = -1;  ///< -1 if ids cannot be decoded to text
  };
  /// The number of tokens whose loss is not finite, and the first of them.
  struct Nonfinite {
    std::int64_t tokens = 0;
    std::string source;
    std::int64_t document = 0;  ///< index in the source
  };
  double mean = 0;                      ///< over all sources, summed like a training loss
  std::optional<double> sharpness;      ///< phi in percent, over all its tokens
  std::vector<Source> sources;          ///< sources that had at least one token
  std::vector<DocumentLoss> documents;  ///< documents with at least one token, in reading order
  std::uint64_t text = 0;               ///< HeldOutLosses::text
  std::optional<Nonfinite> nonfinite;
};

struct ExactMatch {
  std::int64_t asked = 0;
  std::int64_t right = 0;
};

struct PassAtK {
  struct Estimate {
    std::int64_t k = 0;
    double value = 0;  ///< mean over the problems
  };
  std::int64_t problems = 0;
  std::vector<Estimate> estimates;
};

/// Results of an evaluation. Parts that were not requested are empty.
struct Evaluation {
  HeldOutLoss held_out;
  std::optional<ExactMatch> exact_match;
  std::optional<PassAtK> pass_at_k;
  std::optional<ChoiceAccuracy> multiple_choice;
  std::optional<RolloutGap> rollout;
};

/// One named result of an evaluation, as stored in run files (src/io/README.md).
struct Score {
  std::string name;
  double value = 0;
  std::int64_t count = 0;  ///< number of tokens, problems or questions
};
/// Returns all results except the mean loss and the exact match, which have their own columns.
std::vector<Score> scores_of(const Evaluation& evaluation);

/// The inputs of an evaluation besides its documents. They are read once, before the computation
/// starts, so later changes of the files have no effect.
struct EvaluationInputs {
  QuestionSet questions;                 ///< empty if no questions are asked
  std::optional<Recipe> rollout_recipe;  ///< set if the rollout has its own recipe
};

/// Reads the inputs. Throws Error for questions that do not fit `model` or a sequence of
/// `sequence_length` tokens, for data whose ids must be decoded to text and cannot, for prompts
/// that leave no room for an answer, for answers without a result to compare, and for an unknown
/// rollout recipe. Messages begin with `where`, "stage cpt". `recorded`: recipes of the run, as in
/// load_recipe.
EvaluationInputs read_evaluation_inputs(const EvalConfig& config, const DataSources& data,
                                        const ModelConfig& model, std::int64_t sequence_length,
                                        const std::string& where, const RecipeTexts& recorded = {});

/// Properties of an evaluation's texts that determine its memory.
struct EvaluationTexts {
  std::int64_t longest = 0;  ///< tokens of a prompt and its answer
  std::int32_t padding = 0;
};

/// The backend memory of an evaluation besides the evaluated model.
struct EvaluationMemory {
  /// Precondition: all arguments outlive the object. `parameters` belong to `transformer`; a
  /// rollout uses them under `rollout_recipe` unless that is null. Throws Error for a rollout
  /// recipe that the backend refuses, that has other activations than training, or that has delayed
  /// scales, for which no history exists.
  EvaluationMemory(Backend& backend, const Parameters& parameters, Transformer& transformer,
                   const EvalConfig& config, const EvaluationTexts& texts,
                   const Recipe* rollout_recipe, const std::atomic<bool>* stop = nullptr);

  TensorView scalars;
  Scorer scorer;
  std::unique_ptr<Generator> generator;        ///< set if anything is generated
  std::unique_ptr<Transformer> rollout_model;  ///< set if the rollout has its own recipe
  std::unique_ptr<Generator> rollout_generator;
};

/// Returns the problems to complete: the first of `data` whose prompts leave room for an answer
/// within `limit` tokens. Empty if nothing is generated.
std::vector<Problem> problems_of(const EvalConfig& config, const DataSources& data,
                                 std::int64_t limit);
EvaluationTexts texts_of(const EvalConfig& config, const DataSources& data,
                         const std::vector<Problem>& problems);

/// Evaluates one stage or one model; buffers are allocated once.
class Evaluator {
 public:
  /// Precondition: all arguments outlive the evaluator; `data` is the opened config.data, and
  /// `inputs` comes from read_evaluation_inputs. Throws Error under the conditions of
  /// EvaluationMemory. `stop`, unless null, ends evaluations when it is set.
  Evaluator(Backend& backend, const Parameters& parameters, Transformer& transformer,
            const EvalConfig& config, const DataSources& data, const EvaluationInputs& inputs,
            const std::atomic<bool>* stop = nullptr);

  /// Reports the parts of later evaluations to `report`.
  void report_to(PartReport report) { report_ = std::move(report); }

  /// Quantizes the weights and computes the held-out loss over the configured number of packed
  /// sequences (rounded up to whole micro-batches), always the same ones. With `complete`, also
  /// runs everything else that is configured. Delayed scales are not updated. Throws
  /// EvaluationStopped between forward passes once `stop` is set.
  Evaluation evaluate(const StepContext& context, bool complete);

 private:
  Evaluation measure(const StepContext& context, bool complete);
  HeldOutLoss held_out_loss(const StepContext& context);
  ExactMatch exact_match(const StepContext& context);
  PassAtK pass_at_k(const StepContext& context);
  RolloutGap rollout(const StepContext& context);
  GenerationConfig generation(const SamplingConfig& sampling) const;
  /// Returns the prompts of the first `problems` problems, each `samples` times.
  std::vector<Prompt> prompts(std::int64_t problems, std::int64_t samples) const;

  Backend& backend_;
  const Parameters& parameters_;
  Transformer& transformer_;
  EvalConfig config_;
  const DataSources& data_;
  const std::atomic<bool>* stop_;
  const EvaluationInputs& inputs_;
  std::vector<Problem> problems_;
  EvaluationMemory memory_;
  PartReport report_;  ///< null: unreported
};

}  // namespace fp8lab
