#include "src/config/recipe/stage_recipes.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp8lab {

std::vector<StageRecipe> recipes_of(const RunConfig& config, const StageConfig& stage) {
  std::vector<StageRecipe> all = {
      {stage.recipe.empty() ? config.recipe : stage.recipe, 0, stage.steps, false}};
  for (const RecipeSwitch& change : stage.recipe_at) {
    all.back().steps = change.step - all.back().after;
    all.push_back({change.recipe, change.step, stage.steps - change.step, false});
  }
  if (stage.fallback) all.push_back({stage.fallback->recipe, 0, 0, true});
  return all;
}

std::size_t recipe_of_step(const StageConfig& stage, std::int64_t stage_step, bool fallen) {
  const std::vector<RecipeSwitch>& changes = stage.recipe_at;
  if (fallen) return changes.size() + 1;
  return static_cast<std::size_t>(
      std::count_if(changes.begin(), changes.end(),
                    [&](const RecipeSwitch& change) { return change.step < stage_step; }));
}

std::vector<std::string> own_recipes(const StageConfig& stage) {
  std::vector<std::string> names;
  if (!stage.recipe.empty()) names.push_back(stage.recipe);
  for (const RecipeSwitch& change : stage.recipe_at) names.push_back(change.recipe);
  if (stage.fallback) names.push_back(stage.fallback->recipe);
  return names;
}

std::string recipes_text(const RunConfig& config, const StageConfig& stage) {
  std::string text;
  for (const StageRecipe& recipe : recipes_of(config, stage)) {
    if (!text.empty()) text += "+";
    text += load_recipe(recipe.name, config.recorded).name;
    if (recipe.is_fallback) {
      text += "@fallback";
    } else if (recipe.after > 0) {
      text += fmt::format("@{}", recipe.after);
    }
  }
  return text;
}

}  // namespace fp8lab
