// A word as a POSIX shell reads it back.
#pragma once

#include <string>

namespace fp8lab {

/// 'WORD' between single quotes, whatever it holds.
std::string shell_quoted(const std::string& word);

/// `word` as it is where a shell reads that as one word, else shell_quoted.
std::string shell_word(const std::string& word);

}  // namespace fp8lab
