#include "src/io/shell_word.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
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

std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  bool in_word = false;
  bool in_quotes = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == ' ' && !in_quotes) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\'') {
      in_quotes = !in_quotes;
    } else if (c == '\\' && !in_quotes && i + 1 < line.size()) {
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  return words;
}

}  // namespace fp8lab
