// What a model is worth on held-out data, in the numerics of a recipe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
#include "src/model/transformer.hpp"

namespace fp8lab {

/// Loss in nats per unmasked token.
struct HeldOutLoss {
  struct Source {
    std::string name;
    std::int64_t tokens = 0;    ///< unmasked
    double loss = 0;            ///< perplexity is exp(loss)
    double bits_per_byte = -1;  ///< -1 where ids cannot be read as text
  };
  /// Tokens whose loss is not finite, and the first of them.
  struct Nonfinite {
    std::int64_t tokens = 0;
    std::string source;
    std::int64_t document = 0;  ///< of the source, from 0 on
  };
  double mean = 0;                      ///< over all sources, as a training loss is summed
  std::optional<double> sharpness;      ///< phi in percent, of all its tokens
  std::vector<Source> sources;          ///< those that had a token
  std::vector<DocumentLoss> documents;  ///< those that had one, in the order of reading
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

/// Parts that were not asked for are missing.
struct Evaluation {
  HeldOutLoss held_out;
  std::optional<ExactMatch> exact_match;
  std::optional<PassAtK> pass_at_k;
  std::optional<ChoiceAccuracy> multiple_choice;
  std::optional<RolloutGap> rollout;
};

/// One number of an evaluation under a name, as run files hold them (src/io/README.md).
struct Score {
  std::string name;
  double value = 0;
  std::int64_t count = 0;  ///< tokens, problems or questions behind it
};
/// All numbers but the mean loss and the exact match, which have columns of their own.
std::vector<Score> scores_of(const Evaluation& evaluation);

/// What an evaluation reads beside its documents. It is read once, before anything is computed,
/// and kept: what happens to the files afterwards changes nothing.
struct EvaluationInputs {
  QuestionSet questions;                 ///< none where none are asked
  std::optional<Recipe> rollout_recipe;  ///< where a rollout has one of its own
};

/// Throws Error for questions that do not fit `model` or a sequence of `sequence_length` tokens,
/// for data whose ids must be read as text and cannot, and for an unknown rollout recipe.
/// `recorded`: recipes of the run, as load_recipe.
EvaluationInputs read_evaluation_inputs(const EvalConfig& config, const DataSources& data,
                                        const ModelConfig& model, std::int64_t sequence_length,
                                        const RecipeTexts& recorded = {});

/// The texts of an evaluation, as far as they decide how much memory it takes.
struct EvaluationTexts {
  std::int64_t longest = 0;  ///< tokens of a prompt and its answer
  std::int32_t padding = 0;
};

/// What an evaluation holds in backend memory beside the model that it evaluates.
struct EvaluationMemory {
  /// Everything given must outlive it. `parameters` are those of `transformer`, for a rollout in
  /// `rollout_recipe`, unless that is null. Throws Error for a rollout recipe that the backend
  /// refuses, of other activations than training, or with delayed scales, whose history there is
  /// not.
  EvaluationMemory(Backend& backend, const Parameters& parameters, Transformer& transformer,
                   const EvalConfig& config, const EvaluationTexts& texts,
                   const Recipe* rollout_recipe, const std::atomic<bool>* stop = nullptr);

  TensorView scalars;
  Scorer scorer;
  std::unique_ptr<Generator> generator;        ///< if something is generated
  std::unique_ptr<Transformer> rollout_model;  ///< if it has a recipe of its own
  std::unique_ptr<Generator> rollout_generator;
};

/// What is completed in an evaluation: the first problems of `data` whose prompts leave room for an
/// answer in `limit` tokens. None where nothing is generated.
std::vector<Problem> problems_of(const EvalConfig& config, const DataSources& data,
                                 std::int64_t limit);
EvaluationTexts texts_of(const EvalConfig& config, const DataSources& data,
                         const std::vector<Problem>& problems);

/// The evaluation of one stage or of one model: buffers allocated once.
class Evaluator {
 public:
  /// Everything given must outlive the evaluator; `data` is config.data opened, `inputs` what
  /// read_evaluation_inputs read. Throws Error as EvaluationMemory does. `stop`, unless null, ends
  /// evaluations when it is raised.
  Evaluator(Backend& backend, const Parameters& parameters, Transformer& transformer,
            const EvalConfig& config, const DataSources& data, const EvaluationInputs& inputs,
            const std::atomic<bool>* stop = nullptr);

  /// Quantizes the weights and takes the held-out loss: over the configured number of packed
  /// sequences (rounded up to whole micro-batches), always the same ones. `complete`: also
  /// everything else that is configured. Delayed scales stay what they are. Throws
  /// EvaluationStopped between forward passes once `stop` is raised.
  Evaluation evaluate(const StepContext& context, bool complete);

 private:
  Evaluation measure(const StepContext& context, bool complete);
  HeldOutLoss held_out_loss(const StepContext& context);
  ExactMatch exact_match(const StepContext& context);
  PassAtK pass_at_k(const StepContext& context);
  RolloutGap rollout(const StepContext& context);
  GenerationConfig generation(const SamplingConfig& sampling) const;
  /// The prompts of the first `problems` problems, `samples` times each.
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
};

}  // namespace fp8lab
