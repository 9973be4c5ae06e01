#include "src/diagnosis/estimator_remark.hpp"

#include <fmt/core.h>

#include <vector>

#include "emulation/spec/estimator.hpp"

namespace fp8lab {

std::optional<std::string> estimator_remark(const Recipe& recipe) {
  std::vector<const LinearRecipe*> layers = {&recipe.linear};
  for (const RecipeOverride& exception : recipe.overrides) layers.push_back(&exception.recipe);
  for (const LinearRecipe* const layer : layers) {
    for (const Slot slot : kSlots) {
      const numerics::Estimator& estimator = layer->slot(slot).estimator;
      if (!estimator) continue;
      return fmt::format(
          "recipe {} multiplies gradients on purpose, by the estimator {} of {}: the part called "
          "estimator is no error of arithmetic",
          recipe.name, estimator_name(estimator), slot_name(slot));
    }
  }
  return std::nullopt;
}

}  // namespace fp8lab
