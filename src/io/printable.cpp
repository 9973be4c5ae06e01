#include "src/io/printable.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fp8lab {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0u) == 0x80; }

/// Returns the length of the UTF-8 character at the start of `text`; 0 if it is not valid UTF-8.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  const std::string_view rest = text.substr(1, length - 1);
  if (!std::all_of(rest.begin(), rest.end(), is_continuation)) return 0;
  // Refuses overlong encodings, surrogates, and code points beyond the last character.
  const auto second = length > 1 ? static_cast<unsigned char>(text[1]) : 0u;
  const bool is_none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return is_none ? 0 : length;
}

/// Escapes everything in `text` that a terminal would interpret, except the
/// control characters in `keep`.
std::string escaped(std::string_view text, std::string_view keep) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool is_c0 = byte < 0x20 || byte == 0x7f;
    if (length == 0 || (is_c0 && keep.find(text[0]) == std::string_view::npos)) {
      result += fmt::format("\\x{:02x}", byte);
      text.remove_prefix(1);
      continue;
    }
    const bool is_c1 = byte == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (is_c1) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[1]));
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result;
}

/// Returns the number of bytes in the first `count` characters of a UTF-8 text.
std::size_t bytes_of_characters(std::string_view text, std::size_t count) {
  std::size_t end = 0;
  for (; count > 0 && end < text.size(); --count) {
    ++end;
    while (end < text.size() && is_continuation(text[end])) ++end;
  }
  return end;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return escaped(line, "");
}

std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }

std::vector<std::string> wrapped_lines(std::string_view text, std::size_t columns) {
  const std::string safe = printable_lines(text);
  std::vector<std::string> lines;
  std::string_view rest = safe;
  for (bool more = true; more;) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + 1);
    std::size_t most = bytes_of_characters(line, columns);
    while (most < line.size()) {
      const std::size_t blank = line.substr(0, most).rfind(' ');
      const std::size_t cut =
          blank != std::string_view::npos && blank + 1 > most / 2 ? blank + 1 : most;
      lines.emplace_back(line.substr(0, cut));
      line.remove_prefix(cut);
      most = bytes_of_characters(line, columns);
    }
    lines.emplace_back(line);
  }
  return lines;
}

}  // namespace fp8lab
