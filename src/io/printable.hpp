// Makes text from other sources safe to print on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Returns `text` on one line without anything that a terminal would interpret. Line ends
/// become blanks; other control characters (including those of C1) and bytes that are not UTF-8
/// become \x1b and the like.
std::string printable(std::string_view text);

/// Like `printable`, but keeps line feeds and tabs; carriage returns become \x0d.
std::string printable_lines(std::string_view text);

/// Returns the lines of printable_lines(text). Lines of more than `columns` characters are broken,
/// after a nearby blank if there is one.
std::vector<std::string> wrapped_lines(std::string_view text, std::size_t columns);

}  // namespace fp8lab
