// fp8lab quantize for a whole model.
#pragma once

#include <string>

#include "src/cli/options/options.hpp"

namespace fp8lab::cli {

/// Returns true for inputs that `quantize` reads as a model: a folder, or a
/// file called *.safetensors.
bool is_model(const std::string& input);

/// Measures the weights of the model's linear layers under `values["recipe"]` and under other
/// quantizers, and writes them in FP8 if requested. Returns the exit status.
int quantize_model(const Values& values);

}  // namespace fp8lab::cli
