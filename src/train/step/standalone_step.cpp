#include "src/train/step/standalone_step.hpp"

#include <algorithm>
#include <vector>

#include "src/data/random.hpp"

namespace fp8lab {

StandaloneStep::StandaloneStep(Backend& memory_of, const RunConfig& config,
                               const StageConfig& stage, const Recipe& recipe)
    : backend(memory_of),
      memory(backend, config, load_recipe(config.recipe, config.recorded)),
      objective(make_objective(stage.objective)),
      transformer(make_transformer(backend, memory.parameters, config, stage, recipe)) {
  // The first steps of a history use the tensor's own amax; a typical step does not.
  for (const auto& layer : transformer->linears()) {
    OperandSet& operands = layer->operands();
    for (const OperandId id : operands.ids()) {
      operands.continue_history(id, operands.declaration(id).spec.warmup_steps);
    }
  }
}

void StandaloneStep::take(std::span<const Batch> batches, const UpdateSpec& optimizer,
                          bool statistics) {
  StepContext context;
  context.log_statistics = statistics;
  step().update(optimizer, context.seed, step().accumulate(context, batches, 1e-3));
}

void StandaloneStep::take_losses(std::span<const Batch> batches) {
  const StepContext context;
  transformer->prepare_weights(context);
  for (const Batch& batch : batches) {
    transformer->load(batch);
    transformer->forward(context);
    likelihood().run(*transformer, memory.step.scalars, Leaves::logits);
  }
}

Batch random_batch(const StageConfig& stage, std::int64_t vocab_size) {
  const std::vector<ColumnSpec> own = make_objective(stage.objective)->own_columns();
  Batch batch = Batch::padded(stage.micro_batch_sequences, stage.sequence_length, 0, own);
  RandomSequence random(1, 0);
  const std::size_t count = batch[kTokens].size();
  for (std::size_t i = 0; i < count; ++i) {
    batch[kTokens][i] = static_cast<std::int32_t>(random.between(0, vocab_size - 1));
    batch[kTargets][i] = static_cast<std::int32_t>(random.between(0, vocab_size - 1));
    batch[kPositions][i] =
        static_cast<std::int32_t>(i) % static_cast<std::int32_t>(stage.sequence_length);
  }
  batch[kTargetWeights].assign(count, 1.0f);
  for (const ColumnSpec& column : own) batch[Column<float>(column.name)].assign(count, 1.0f);
  batch.trained_tokens = static_cast<std::int64_t>(count);
  return batch;
}

void fill_with_noise(Parameters& parameters) {
  constexpr std::int64_t kPiece = 1 << 18;
  const double range = parameters.model().initializer_range * 1.7320508075688772;
  RandomSequence random(1, 1);
  std::vector<float> values(kPiece);
  for (float& value : values) {
    value = static_cast<float>(range * (2.0 * random.open_unit() - 1.0));
  }
  const std::vector<float> ones(kPiece, 1.0f);
  for (const Parameter& parameter : parameters.all()) {
    const std::span<const float> source(parameter.declaration.is_vector ? ones : values);
    const std::int64_t size = parameter.master().size();
    for (std::int64_t first = 0; first < size; first += kPiece) {
      const std::int64_t count = std::min(kPiece, size - first);
      parameters.upload(parameter, first, source.first(static_cast<std::size_t>(count)));
    }
  }
}

}  // namespace fp8lab
