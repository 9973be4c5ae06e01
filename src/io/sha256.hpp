// SHA-256 (FIPS 180-4): identity of files that others check, because every language has it.
#pragma once

#include <string>
#include <string_view>

namespace fp8lab {

/// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace fp8lab
