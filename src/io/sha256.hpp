// SHA-256 (FIPS 180-4) for files that other programs check, because every language has it.
#pragma once

#include <string>
#include <string_view>

namespace fp8lab {

/// Returns 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace fp8lab
