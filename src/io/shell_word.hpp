// Quotes words for a POSIX shell.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// Returns 'WORD' between single quotes, whatever characters it contains.
std::string shell_quoted(const std::string& word);

/// Returns `word` unchanged if a shell reads it as one word, else shell_quoted(word).
std::string shell_word(const std::string& word);

/// As shell_word for a path: "./-x" for "-x", which a program would take for an option.
std::string shell_path(const std::string& path);

/// Returns an option with its value, "--out runs/x", or "--out=-x" for a value that a program would
/// take for an option.
std::string shell_option(const std::string& name, const std::string& value);

/// Returns the words of `line`, which shell_word, shell_path and shell_option wrote with blanks
/// between them.
std::vector<std::string> shell_words(const std::string& line);

}  // namespace fp8lab
