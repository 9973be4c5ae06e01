// Writing TOML by hand.
#pragma once

#include <string>
#include <string_view>

namespace fp8lab {

/// `text` as a TOML basic string.
std::string toml_quoted(std::string_view text);

}  // namespace fp8lab
