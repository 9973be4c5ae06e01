// --seed of commands that quantize: refused where nothing is drawn.
#pragma once

#include <span>
#include <string>

#include "emulation/spec/recipe.hpp"
#include "src/cli/options.hpp"

namespace fp8lab::cli {

/// Throws Error where --seed was given and none of `specs` rounds stochastically or draws signs.
void check_seed(const Values& values, const std::string& command, std::span<const QuantSpec> specs);

/// How the weights of linear layers may be quantized: fprop.w of a recipe and of its overrides.
std::vector<QuantSpec> weight_specs(const Recipe& recipe);

}  // namespace fp8lab::cli
