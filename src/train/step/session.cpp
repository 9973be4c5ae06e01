#include "src/train/step/session.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {
namespace {

void require_targets(const Batch& batch) {
  if (batch.trained_tokens > 0) return;
  throw InputError({.reason = "no token of the batch has a target, so there is no loss",
                    .accepted = "at least one target from 0 on"});
}

}  // namespace

Batch make_batch(std::vector<std::int32_t> tokens, std::vector<std::int32_t> targets,
                 std::int64_t sequences, std::int64_t vocab_size,
                 std::span<const ColumnSpec> more) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (sequences < 1 || count < sequences || count % sequences != 0 ||
      targets.size() != tokens.size()) {
    throw InputError(
        {.reason = fmt::format("{} tokens and {} targets do not make {} sequences of one length",
                               tokens.size(), targets.size(), sequences)});
  }
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    throw InputError({.noun = "token",
                      .found = fmt::to_string(token),
                      .reason = fmt::format("is not in the vocabulary of {}", vocab_size)});
  }
  Batch batch(sequences, count / sequences, more);
  for (const ColumnSpec& column : more) batch[Column<float>(column.name)].assign(tokens.size(), 0);
  batch[kDocumentStarts].assign(tokens.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t& target = targets[static_cast<std::size_t>(i)];
    if (target >= vocab_size) {
      throw InputError({.noun = "target",
                        .found = fmt::to_string(target),
                        .reason = fmt::format("is not in the vocabulary of {}", vocab_size)});
    }
    batch[kPositions].push_back(static_cast<std::int32_t>(i % batch.sequence_length));
    batch[kTargetWeights].push_back(target >= 0 ? 1.0f : 0.0f);
    batch.trained_tokens += target >= 0 ? 1 : 0;
    target = std::max(target, 0);
  }
  batch[kTokens] = std::move(tokens);
  batch[kTargets] = std::move(targets);
  return batch;
}

void set_column(Batch& batch, const ColumnSpec& column, std::span<const float> values) {
  const std::vector<float>& weights = batch[kTargetWeights];
  FP8LAB_ASSERT(values.size() == weights.size());
  std::vector<float>& destination = batch[Column<float>(column.name)];
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (weights[i] == 0.0f) continue;
    if (!std::isfinite(values[i])) {
      const auto length = static_cast<std::size_t>(batch.sequence_length);
      throw InputError({.noun = "column",
                        .key = std::string(column.record_key),
                        .found = fmt::format("{} at ({}, {})", values[i], i / length, i % length),
                        .accepted = "finite numbers at trained tokens"});
    }
    destination[i] = values[i];
  }
}

ModelSession::ModelSession(Backend& backend, const ModelConfig& model, const SessionConfig& config)
    : backend_(backend),
      model_(model),
      config_(config),
      parameters_(backend, model, config.optimizer, config.recipe.activation_dtype),
      block_(backend),
      objective_(make_objective(config.objective)),
      columns_(objective_->own_columns()) {
  parameters_.initialize(config_.seed);
  mark_ = backend_.memory_mark();
}

StepContext ModelSession::context() const {
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(steps_ + 1);
  return context;
}

Transformer& ModelSession::transformer_for(const Batch& batch) {
  const bool fits = transformer_ != nullptr && transformer_->shape().sequences == batch.sequences &&
                    transformer_->shape().sequence_length == batch.sequence_length;
  if (!fits) {
    transformer_.reset();
    backend_.release_to(mark_);
    transformer_ = std::make_unique<Transformer>(
        backend_, parameters_, model_, config_.recipe,
        BatchShape{batch.sequences, batch.sequence_length, config_.attention, {}, columns_});
  }
  return *transformer_;
}

Transformer& ModelSession::prepare(const Batch& batch) {
  Transformer& transformer = transformer_for(batch);
  transformer.load(batch);
  transformer.prepare_weights(context());
  return transformer;
}

std::vector<float> ModelSession::logits(const Batch& batch) {
  Transformer& transformer = prepare(batch);
  transformer.forward(context());
  transformer.discard_amaxes();
  std::vector<float> values(static_cast<std::size_t>(transformer.logits().size()));
  download_floats(backend_, transformer.logits(), values);
  return values;
}

TrainingStep ModelSession::training_step(Transformer& transformer) {
  return {backend_, parameters_, transformer, block_, *objective_};
}

double ModelSession::loss(const Batch& batch) {
  require_targets(batch);
  Transformer& transformer = prepare(batch);
  begin_step(backend_, block_.scalars, 0.0, batch.trained_tokens);
  transformer.forward(context());
  likelihood().run(transformer, block_.scalars, Leaves::logits);
  transformer.discard_amaxes();
  return training_step(transformer).results().mean_loss();
}

std::vector<float> ModelSession::token_losses(const Batch& batch) {
  loss(batch);
  std::vector<float> values(static_cast<std::size_t>(transformer_->token_losses().size()));
  download_floats(backend_, transformer_->token_losses(), values);
  return values;
}

std::vector<Completion> ModelSession::generate(const std::vector<Prompt>& prompts,
                                               const GenerationConfig& config,
                                               std::int64_t together) {
  std::int64_t longest = 1;
  for (const Prompt& prompt : prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.tokens.size()));
  }
  const std::int64_t capacity =
      std::min(longest + config.max_new_tokens, model_.max_position_embeddings);
  const auto count = std::max<std::int64_t>(static_cast<std::int64_t>(prompts.size()), 1);
  transformer_.reset();
  backend_.release_to(mark_);
  Transformer transformer(backend_, parameters_, model_, config_.recipe,
                          BatchShape{1, capacity, config_.attention}, Purpose::inference);
  transformer.prepare_weights(context());
  Generator generator(backend_, transformer, std::min({together, count, capacity}), capacity);
  std::vector<Completion> completions = generator.generate(context(), prompts, config);
  backend_.release_to(mark_);
  return completions;
}

double ModelSession::gradients(const Batch& batch) {
  require_targets(batch);
  Transformer& transformer = transformer_for(batch);
  const TrainingStep step = training_step(transformer);
  step.accumulate(context(), {&batch, 1}, 0.0);
  transformer.discard_amaxes();
  return step.results().mean_loss();
}

ModelSession::Step ModelSession::step(const Batch& batch, double learning_rate) {
  require_targets(batch);
  if (steps_ == 0) {
    parameters_.round_weights(config_.seed);
    parameters_.reset_optimizer();
  }
  const TrainingStep step = training_step(transformer_for(batch));
  const std::int64_t tokens = step.accumulate(context(), {&batch, 1}, learning_rate);
  step.update(config_.optimizer.update, config_.seed, tokens);
  ++steps_;
  const StepResults results = step.results();
  return {results.mean_loss(), results.scalar(StepScalar::kGradNorm)};
}

}  // namespace fp8lab
