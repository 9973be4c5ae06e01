// A model outside a run: what it computes for batches that a caller brings, one after another.
#pragma once

#include <memory>
#include <vector>

#include "src/config/config.hpp"
#include "src/evaluation/generator.hpp"
#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {

/// Numerics of a session.
struct SessionConfig {
  Recipe recipe;
  OptimizerConfig optimizer;
  AttentionConfig attention;
  std::uint64_t seed = 1;  ///< of the initial weights and of random roundings
};

/// Sequences of tokens as a batch, each a document of its own. `targets` holds for each token the
/// one to predict, a negative number where none is trained on. Throws Error for a token or target
/// that is not in the vocabulary, and when the two differ in length.
Batch make_batch(std::vector<std::int32_t> tokens, std::vector<std::int32_t> targets,
                 std::int64_t sequences, std::int64_t vocab_size);

class ModelSession {
 public:
  /// Random weights; see parameters(). `backend` must outlive the session, which alone allocates
  /// from it.
  ModelSession(Backend& backend, const ModelConfig& model, const SessionConfig& config);

  const ModelConfig& model() const { return model_; }
  Parameters& parameters() { return parameters_; }
  std::int64_t steps() const { return steps_; }

  /// (tokens, vocab_size) of the batch. Changes nothing but the random keys of the next step.
  std::vector<float> logits(const Batch& batch);
  /// Mean loss in nats over the batch's trained tokens.
  double loss(const Batch& batch);
  /// Loss in nats of every token of the batch, 0 where none is trained on.
  std::vector<float> token_losses(const Batch& batch);
  /// Completions with a key-value cache, `together` prompts at once. Delayed scales and smoothing
  /// factors start again, as with a batch of another shape.
  std::vector<Completion> generate(const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config, std::int64_t together);
  /// The same, and the gradients of all parameters in their place.
  double gradients(const Batch& batch);

  struct Step {
    double loss = 0, gradient_norm = 0;
  };
  /// gradients() and one update with clipping. Delayed scales end their step.
  Step step(const Batch& batch, double learning_rate);

 private:
  /// The model at work on batches of this shape, with the batch loaded and the weights quantized.
  /// Another shape than before makes it anew: delayed scales and smoothing factors start again.
  Transformer& transformer_for(const Batch& batch);
  /// With the batch loaded and the weights prepared.
  Transformer& prepare(const Batch& batch);
  StepContext context() const;
  TrainingStep training_step(Transformer& transformer);

  Backend& backend_;
  ModelConfig model_;
  SessionConfig config_;
  Parameters parameters_;
  StepBlock block_;
  std::size_t mark_ = 0;  ///< of the backend's memory, before the transformer's
  std::unique_ptr<Transformer> transformer_;
  std::int64_t steps_ = 0;
};

}  // namespace fp8lab
