// The [model] table of run files: TOML to ModelConfig and back.
#pragma once

#include <string>

#include "src/config/config.hpp"

namespace fp8lab {

class TomlReader;

/// Reads table `model` of `document`; without one, the defaults of ModelConfig.
ModelConfig read_model_table(TomlReader& document);

/// The table as text, every key that matters explicit.
std::string model_table_text(const ModelConfig& model);

/// The model of such a text. Throws Error naming `origin`.
ModelConfig parse_model_table(const std::string& text, const std::string& origin);

}  // namespace fp8lab
