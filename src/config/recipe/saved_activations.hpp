// The table [saved_activations] of a recipe file: how layers save what their backward passes read.
#pragma once

#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {

/// The value of an activation that is not saved.
inline constexpr char kRecomputeWord[] = "recompute";

/// Returns what a value of the table may be, for help and errors.
std::string accepted_saved_activation();

/// Reads the table, if there is one. Its keys are `default` and names of activations that layers
/// save ([saved_activations] "mlp.inner" or mlp.inner), in the order of their declaration; its
/// values the words of a quantizer, the type of the activations, or "recompute". Throws Error with
/// file:line:column.
std::vector<SavedActivation> read_saved_activations(TomlReader& document, DType activations);

}  // namespace fp8lab
