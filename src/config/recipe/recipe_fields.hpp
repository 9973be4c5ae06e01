// The keys of a recipe file beside its slots and GEMMs (emulation/spec/spec_fields.hpp).
#pragma once

#include "emulation/spec/fields.hpp"
#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// Returns the fields name, summary and activations.
const Fields<Recipe>& recipe_fields();

}  // namespace fp8lab
