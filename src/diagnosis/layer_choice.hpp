// Selects the linear layers of a diagnosis.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// Returns the linear layers of `model` that match one of `patterns` (layer_pattern_matches), as
/// ascending indices into Declaration::linears(). Without patterns: all except `lm_head`, which
/// most recipes leave in bf16 and which is a fifth of the work of a small model. Throws Error if a
/// pattern matches no layer.
std::vector<std::size_t> chosen_layers(const ModelConfig& model,
                                       const std::vector<std::string>& patterns);

}  // namespace fp8lab
