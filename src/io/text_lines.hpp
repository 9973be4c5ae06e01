// The lines of a text that is in memory as a whole: read_file says why its reading ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace fp8lab {

/// One line after another, without their ends; a last line need not end. `text` must outlive it.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : rest_(text) {}

  /// False after the last one.
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++number_;
    return true;
  }
  /// Of the last line, from 1 on.
  std::int64_t number() const { return number_; }

 private:
  std::string_view rest_;
  std::int64_t number_ = 0;
};

/// Nothing but spaces, tabs and carriage returns.
inline bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace fp8lab
