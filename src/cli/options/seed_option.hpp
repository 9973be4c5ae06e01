// --seed of commands that quantize: refused if no random bits are drawn.
#pragma once

#include <span>
#include <string>

#include "emulation/spec/recipe.hpp"
#include "src/cli/options/options.hpp"

namespace fp8lab::cli {

/// Throws Error if --seed was given but none of `specs` rounds
/// stochastically or draws random signs.
void check_seed(const Values& values, const std::string& command, std::span<const QuantSpec> specs);

/// Returns the quantizers of the weights of linear layers: fprop.w of a
/// recipe and of its overrides.
std::vector<QuantSpec> weight_specs(const Recipe& recipe);

}  // namespace fp8lab::cli
