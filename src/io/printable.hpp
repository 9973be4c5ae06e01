// Text of others for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// `text` on one line, with nothing that a terminal obeys: line ends become blanks, other control
/// characters, those of C1 among them, and bytes that are no UTF-8 \x1b and the like.
std::string printable(std::string_view text);

/// The same with line feeds and tabs as they are, and carriage returns as \x0d.
std::string printable_lines(std::string_view text);

/// The lines of printable_lines(text), those of more than `columns` characters in several, broken
/// after a blank where one is near.
std::vector<std::string> wrapped_lines(std::string_view text, std::size_t columns);

}  // namespace fp8lab
