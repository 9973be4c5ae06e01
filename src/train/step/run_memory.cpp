#include "src/train/step/run_memory.hpp"

#include "src/error_sources/run_sources.hpp"
#include "src/objectives/objective.hpp"

namespace fp8lab {

RunMemory::RunMemory(Backend& backend, const RunConfig& config, const Recipe& recipe, Ranks& ranks)
    : parameters(backend, config.model, storage_of(config),
                 without_exact_sources(config, recipe).activation_dtype),
      step(backend),
      shards(backend, parameters, step.scalars, config.parallel.shards, ranks) {
  if (config.warnings.enabled && config.logging.statistics_every_steps > 0) {
    alignment.emplace(backend, parameters);
  }
}

std::unique_ptr<Transformer> make_transformer(Backend& backend, const Parameters& parameters,
                                              const RunConfig& config, const StageConfig& stage,
                                              const Recipe& recipe) {
  const BatchShape shape{stage.micro_batch_sequences, stage.sequence_length, config.attention,
                         config.memory, make_objective(stage.objective)->own_columns()};
  return std::make_unique<Transformer>(backend, parameters, config.model,
                                       without_exact_sources(config, recipe), shape);
}

}  // namespace fp8lab
