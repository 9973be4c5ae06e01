#include "src/io/shell_word.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace fp8lab {

std::string shell_quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "-_./:=+,@";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kPlain.find(c) != std::string_view::npos;
  });
  return plain ? word : shell_quoted(word);
}

std::string shell_path(const std::string& path) {
  return shell_word(path.starts_with('-') ? "./" + path : path);
}

std::string shell_option(const std::string& name, const std::string& value) {
  return name + (value.starts_with('-') ? "=" : " ") + shell_word(value);
}

}  // namespace fp8lab
