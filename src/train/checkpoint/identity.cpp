#include "src/train/checkpoint/identity.hpp"

#include <fmt/core.h>

#include "emulation/base/error.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

// Prefixes of names that end with the name of a stage.
constexpr char kEvaluationData[] = "evaluation data of stage ";
constexpr char kQuestions[] = "questions of stage ";
constexpr char kRolloutRecipe[] = "rollout recipe of stage ";

}  // namespace

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
    const std::vector<StageRecipe> recipes = recipes_of(config, stage);
    FP8LAB_ASSERT(recipes.size() == stages[i].recipes.size());
    for (std::size_t j = 0; j < recipes.size(); ++j) {
      identity.emplace_back(recipe_part(stage, recipes[j]), stages[i].recipes[j]);
    }
    identity.emplace_back("training data of stage " + stage.name, content_hash(*stages[i].train));
    if (!stage.eval) continue;
    identity.emplace_back(kEvaluationData + stage.name, content_hash(*stages[i].eval));
    const EvaluationInputs& inputs = *stages[i].inputs;
    if (!inputs.questions.hash.empty()) {
      identity.emplace_back(kQuestions + stage.name, inputs.questions.hash);
    }
    if (inputs.rollout_recipe) {
      identity.emplace_back(kRolloutRecipe + stage.name, inputs.rollout_recipe->hash);
    }
  }
  if (!initial_weights_hash.empty()) identity.emplace_back(kInitialWeights, initial_weights_hash);
  return identity;
}

Identity identity_of_steps(const Identity& identity, bool goes_on) {
  Identity steps;
  for (const auto& part : identity) {
    const std::string& name = part.first;
    const bool of_evaluations = name.starts_with(kEvaluationData) || name.starts_with(kQuestions) ||
                                name.starts_with(kRolloutRecipe);
    const bool of_start = name == kInitialWeights || name == kInitialHistories;
    if (!of_evaluations && !(goes_on && of_start)) steps.push_back(part);
  }
  return steps;
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
