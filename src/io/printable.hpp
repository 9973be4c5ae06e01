// Text of others for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace fp8lab {

/// `text` on one line, with nothing that a terminal obeys: line ends become blanks, other control
/// characters, those of C1 in UTF-8 among them, \x1b and the like.
std::string printable(std::string_view text);

}  // namespace fp8lab
