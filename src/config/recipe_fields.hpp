// The keys of a recipe file beside its slots and GEMMs (emulation/api/spec_fields.hpp).
#pragma once

#include "emulation/api/fields.hpp"
#include "emulation/api/recipe.hpp"

namespace fp8lab {

/// name, summary and activations.
const Fields<Recipe>& recipe_fields();

}  // namespace fp8lab
