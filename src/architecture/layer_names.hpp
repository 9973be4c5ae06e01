// The names that recipes use for the parts of a model, read off its declaration.
#pragma once

#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/architecture/declaration.hpp"
#include "src/architecture/model_config.hpp"

namespace fp8lab {

/// Names of modules; N stands for the index of a layer: "layers.N.mlp.down", "lm_head".
struct LayerNames {
  std::vector<std::string> linears;      ///< linear layers
  std::vector<std::string> unquantized;  ///< embeddings, norms, and "attention.core": the products
                                         ///< of attention itself

  /// Return the names for errors and help texts, with the accepted spellings of N and of lists.
  std::string accepted_linears() const;
  std::string accepted_modules() const;
};

LayerNames layer_names(const Declaration& declaration);

/// The names of all models that a LayerSpec can describe.
const LayerNames& layer_names_of_any_model();

/// Names of the activations that layers save for their backward passes, in the order of declaration
/// ("input", "attention.norm", ...).
struct SavedNames {
  std::vector<std::string> all;
  std::vector<std::string> remakeable;  ///< SavedDeclaration::is_remakeable
};

/// The names of all models that a LayerSpec can describe.
const SavedNames& saved_names_of_any_model();

/// Returns true if `pattern` matches one of `names` for some N. The model's number of layers is not
/// known here: an index up to 999 matches, and "first" and "last" are the same layer. A pattern
/// that expands to more than 256 choices matches nothing.
bool names_one_of(const std::string& pattern, const std::vector<std::string>& names);

/// Returns the pattern, in the syntax of recipes, that matches exactly the layers `names`, such as
/// "layers.3.mlp.down", of a model with `count` layers: "layers.{0,1}.mlp.down, lm_head".
std::string layer_pattern(const std::vector<std::string>& names, int count);

/// Throws Error "WHERE: recipe NAME: ..." with the names of the model if an override or a kept
/// module of the recipe matches none of its modules: another kind of block, or a layer beyond the
/// last one. Likewise if no layer saves an activation that the recipe names and quantizes.
void check_layer_names(const Recipe& recipe, const ModelConfig& model, const std::string& where);

}  // namespace fp8lab
