// A model outside a run, for batches that the caller passes one at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "src/config/config.hpp"
#include "src/evaluation/generator.hpp"
#include "src/model/transformer.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {

/// Numerics of a session.
struct SessionConfig {
  Recipe recipe;
  OptimizerConfig optimizer;
  AttentionConfig attention;
  std::uint64_t seed = 1;       ///< of the initial weights and of random roundings
  ObjectiveConfig objective{};  ///< what gradients() and step() minimize
};

/// Returns a batch of sequences of tokens, each one document. `targets` holds the target of each
/// token, or a negative number for a token that is not trained on. Throws Error for a token or
/// target outside the vocabulary, and if the lengths differ. The columns of `more` are 0.
Batch make_batch(std::vector<std::int32_t> tokens, std::vector<std::int32_t> targets,
                 std::int64_t sequences, std::int64_t vocab_size,
                 std::span<const ColumnSpec> more = {});

/// Sets the column of a batch with this key of records, at trained tokens; it stays 0 elsewhere.
/// Throws Error for a value that is not finite there. Preconditions: the batch has the column, and
/// a value for each token.
void set_column(Batch& batch, const ColumnSpec& column, std::span<const float> values);

class ModelSession {
 public:
  /// Draws random weights; set others through parameters(). `backend` must outlive the session;
  /// nothing else may allocate from it.
  ModelSession(Backend& backend, const ModelConfig& model, const SessionConfig& config);

  const ModelConfig& model() const { return model_; }
  Parameters& parameters() { return parameters_; }
  std::int64_t steps() const { return steps_; }
  /// The columns that every batch has beside kBatchColumns: those of the objective's own.
  const std::vector<ColumnSpec>& columns() const { return columns_; }

  /// Returns the logits of the batch, (tokens, vocab_size). Changes only the random keys of the
  /// next step.
  std::vector<float> logits(const Batch& batch);
  /// Returns the mean loss over the batch's trained tokens, in nats.
  double loss(const Batch& batch);
  /// Returns the loss of every token of the batch in nats; 0 for tokens that are not trained on.
  std::vector<float> token_losses(const Batch& batch);
  /// Generates completions with a key-value cache, `together` prompts at a time. Resets delayed
  /// scales and smoothing factors, as a batch of another shape does.
  std::vector<Completion> generate(const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config, std::int64_t together);
  /// Computes the objective's loss and the gradients of all parameters.
  double gradients(const Batch& batch);

  struct Step {
    double loss = 0, gradient_norm = 0;
  };
  /// Runs gradients(), clips them and updates the weights. Delayed scales advance by one step.
  Step step(const Batch& batch, double learning_rate);

 private:
  /// Returns the model for this shape with the batch loaded and the weights quantized. A new shape
  /// rebuilds the model, which resets delayed scales and smoothing factors.
  Transformer& transformer_for(const Batch& batch);
  /// Runs the forward pass. Precondition: the batch is loaded and the weights are quantized.
  Transformer& prepare(const Batch& batch);
  StepContext context() const;
  TrainingStep training_step(Transformer& transformer);

  Backend& backend_;
  ModelConfig model_;
  SessionConfig config_;
  Parameters parameters_;
  StepBlock block_;
  std::size_t mark_ = 0;  ///< allocation mark of the backend before the transformer
  std::unique_ptr<Objective> objective_;
  std::vector<ColumnSpec> columns_;
  std::unique_ptr<Transformer> transformer_;
  std::int64_t steps_ = 0;
};

}  // namespace fp8lab
