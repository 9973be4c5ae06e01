// Explains single words: keys of files, and names of what comes with the program.
#pragma once

#include <string>
#include <vector>

namespace fp8lab::cli {

/// Returns what `word` is and how it is used, once for each meaning; empty if it has none.
std::string help_on(const std::string& word);

/// Returns all words that help_on explains.
std::vector<std::string> help_words();

}  // namespace fp8lab::cli
