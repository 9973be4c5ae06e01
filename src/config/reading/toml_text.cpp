#include "src/config/reading/toml_text.hpp"

#include <fmt/format.h>

namespace fp8lab {

std::string toml_quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += fmt::format("\\{}", c);
    } else if (code < 0x20 || code == 0x7f) {
      result += fmt::format("\\u{:04x}", code);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string toml_text(const FieldValue& value) {
  if (const bool* const flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const double* const number = std::get_if<double>(&value)) return toml_number(*number);
  if (const std::string* const text = std::get_if<std::string>(&value)) return toml_quoted(*text);
  const FieldList* const list = std::get_if<FieldList>(&value);
  if (list == nullptr) return std::to_string(std::get<std::int64_t>(value));
  std::string text = "[";
  for (const FieldValue& element : *list)
    text += (text.size() > 1 ? ", " : "") + toml_text(element);
  return text + "]";
}

}  // namespace fp8lab
