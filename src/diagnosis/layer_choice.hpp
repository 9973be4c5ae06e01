// Which linear layers a diagnosis looks at.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// The linear layers of `model` that one of `patterns` matches (layer_pattern_matches), as indices
/// into Declaration::linears(), in their order. Without patterns all but `lm_head`: most recipes
/// leave it in bf16, and it is a fifth of the work of a small model. Throws Error for a pattern
/// that matches no layer.
std::vector<std::size_t> chosen_layers(const ModelConfig& model,
                                       const std::vector<std::string>& patterns);

}  // namespace fp8lab
