// Names of modules of other frameworks, as recipes name layers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"

namespace fp8lab::interface {

/// A linear layer of another framework, by its full name, such as
/// "model.layers.3.self_attn.q_proj".
struct Module {
  std::string name;
  bool is_head = false;  ///< its outputs are the logits of a language model
};

/// The names by which a pattern may call a module: its own; with its stack of layers named as in
/// recipes, "layers.3.self_attn.q_proj"; and, if it is known, the part that it is or belongs to,
/// "layers.3.attention.qkv". A head is also "lm_head".
std::vector<std::string> names_of(const Module& module);

/// Returns for each module the first of `patterns` that matches one of its names
/// (layer_pattern_matches), or nothing. The indices "first" and "last" are those of the module's
/// own stack: of all modules whose names are equal up to the index.
std::vector<std::optional<std::size_t>> match(const std::vector<std::string>& patterns,
                                              const std::vector<Module>& modules);

/// Returns the numerics of each module as Recipe::for_layer does; null for a module that the recipe
/// keeps in high precision.
std::vector<const LinearRecipe*> recipes_of(const Recipe& recipe,
                                            const std::vector<Module>& modules);

}  // namespace fp8lab::interface
