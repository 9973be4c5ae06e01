// Splits a text in memory into lines. Read errors are reported earlier, by read_file.
#pragma once

#include <cstdint>
#include <string_view>

namespace fp8lab {

/// Iterates over the lines, without their line ends; the last line need not have one. Precondition:
/// `text` outlives this object.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : rest_(text) {}

  /// Returns false after the last line.
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++number_;
    return true;
  }
  /// Number of the current line, from 1 on.
  std::int64_t number() const { return number_; }

 private:
  std::string_view rest_;
  std::int64_t number_ = 0;
};

/// Returns true for lines that contain only spaces, tabs and carriage returns.
inline bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace fp8lab
