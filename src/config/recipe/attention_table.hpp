// The table [attention] of a recipe file: how attention quantizes what it multiplies.
#pragma once

#include <string>

#include "emulation/spec/attention_recipe.hpp"
#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {

/// Returns what the value of a slot may be, for help and errors.
std::string accepted_attention_quantizer(AttentionSlot slot);

/// Reads the table, if there is one. Its keys are q, k, v, p, do and ds; its values the words of a
/// quantizer, in which `head`, `block` and `token` are tiles too, or the type of the activations:
/// as it is. Throws Error with file:line:column.
AttentionRecipe read_attention(TomlReader& document, DType activations);

}  // namespace fp8lab
