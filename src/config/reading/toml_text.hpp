// Functions that write TOML text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "emulation/spec/fields.hpp"

namespace fp8lab {

/// Returns `text` as a TOML basic string.
std::string toml_quoted(std::string_view text);

/// Returns a value as TOML.
std::string toml_text(const FieldValue& value);

/// Returns the shortest decimal that reads back as the same number, with
/// the syntax of a TOML float.
template <class Float>
std::string toml_number(Float value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace fp8lab
