// A recipe for a model at hand.
#pragma once

#include <string>

#include "src/architecture/layer_names.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Loads a recipe as load_recipe does. Throws Error that begins with `where` and lists the names of
/// the model if one of the recipe's patterns matches none of its modules.
inline Recipe load_recipe_for(const ModelConfig& model, const std::string& name_or_path,
                              const std::string& where) {
  Recipe recipe = load_recipe(name_or_path);
  check_layer_names(recipe, model, where);
  return recipe;
}

}  // namespace fp8lab
