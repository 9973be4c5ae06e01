// Quotes words for a POSIX shell.
#pragma once

#include <string>

namespace fp8lab {

/// Returns 'WORD' between single quotes, whatever characters it contains.
std::string shell_quoted(const std::string& word);

/// Returns `word` unchanged if a shell reads it as one word, else shell_quoted(word).
std::string shell_word(const std::string& word);

}  // namespace fp8lab
