// Explains single words: keys of files, their values, and names of the recipes, presets, models,
// studies, optimizers and stages of the program.
#pragma once

#include <string>
#include <vector>

namespace fp8lab::cli {

/// Returns what `word` is and how it is used, for each of its meanings; empty if it has none. A key
/// is found by its path or the end of it: "parallel.shards", "shards"; a value by its word: "wsd".
std::string help_on(const std::string& word);

/// Returns all words that help_on explains.
std::vector<std::string> help_words();

}  // namespace fp8lab::cli
