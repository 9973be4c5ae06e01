#include "src/train/identity.hpp"

#include <fmt/core.h>

#include "src/io/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {

std::string content_hash(const DataSources& sources) {
  Xxh3Stream stream;
  for (const auto& corpus : sources.corpora) {
    const std::uint64_t content = corpus->hash();
    stream.update(&content, sizeof content);
  }
  return hex16(stream.digest());
}

std::string recipe_part(const StageConfig& stage, const StageRecipe& recipe) {
  if (recipe.is_fallback) return "fallback recipe of stage " + stage.name;
  const std::string first = "recipe of stage " + stage.name;
  return recipe.after == 0 ? first : fmt::format("{} after {} steps", first, recipe.after);
}

Identity make_identity(const RunConfig& config, const std::vector<StageContents>& stages,
                       const std::string& initial_weights_hash) {
  Identity identity = {{"configuration", config.hash}, {"arithmetic", hex16(xxh3(kArithmetic))}};
  for (std::size_t i = 0; i < config.stages.size(); ++i) {
    const StageConfig& stage = config.stages[i];
    const std::string of_stage = fmt::format(" of stage {}", stage.name);
    for (const StageRecipe& recipe : recipes_of(config, stage)) {
      identity.emplace_back(recipe_part(stage, recipe), load_recipe(recipe.name).hash);
    }
    identity.emplace_back("training data" + of_stage, content_hash(*stages[i].train));
    if (!stage.eval) continue;
    identity.emplace_back("evaluation data" + of_stage, content_hash(*stages[i].eval));
    if (!stage.eval->multiple_choice.empty()) {
      identity.emplace_back("questions" + of_stage,
                            hex16(xxh3(read_file(stage.eval->multiple_choice))));
    }
    if (stage.eval->rollout && !stage.eval->rollout->recipe.empty()) {
      identity.emplace_back("rollout recipe" + of_stage,
                            load_recipe(stage.eval->rollout->recipe).hash);
    }
  }
  identity.emplace_back(kInitialWeights, initial_weights_hash);
  return identity;
}

std::string hash_of(const Identity& identity) {
  Xxh3Stream stream;
  for (const auto& [name, hash] : identity) {
    stream.update(name);
    stream.update("=");
    stream.update(hash);
    stream.update("\n");
  }
  return hex16(stream.digest());
}

}  // namespace fp8lab
