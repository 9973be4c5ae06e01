// The [model] table of run files: TOML to ModelConfig and back.
#pragma once

#include <string>

#include "src/config/config.hpp"

namespace fp8lab {

class TomlReader;

/// Reads table `model` of `document`; if it is absent, returns the defaults of ModelConfig.
ModelConfig read_model_table(TomlReader& document);

/// Returns the table as text, with every key that has an effect.
std::string model_table_text(const ModelConfig& model);

/// Parses such a text. Throws Error that names `origin`.
ModelConfig parse_model_table(const std::string& text, const std::string& origin);

}  // namespace fp8lab
