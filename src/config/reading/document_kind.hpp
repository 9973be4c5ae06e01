// Tells run files, recipes and studies apart, so that a file given to the wrong command is named.
#pragma once

#include <cstdint>
#include <string>

#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {

enum class DocumentKind : std::uint8_t { run, recipe, study };

/// Throws Error with the command that reads `origin` if the top-level keys of `document` are those
/// of another kind of file than `wanted`. A document with keys of no kind, or of `wanted`, passes.
void require_kind(const toml::table& document, DocumentKind wanted, const std::string& origin);

}  // namespace fp8lab
