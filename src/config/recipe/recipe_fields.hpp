// The keys of a recipe file beside its slots and GEMMs (emulation/spec/spec_fields.hpp).
#pragma once

#include <string_view>

#include "emulation/spec/fields.hpp"
#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// Returns true for letters, digits, '_', '-' and '.', at least one.
bool is_recipe_name(std::string_view name);

/// Returns the fields name, summary, system, source and activations.
const Fields<Recipe>& recipe_fields();

}  // namespace fp8lab
