// Help on the words that keys accept as values.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// Explains `word` as a value, such as "wsd", "e4m3fn" or "hadamard": one entry for each meaning,
/// with the keys that accept it and those that matter only with it. Empty if no key accepts it.
std::string value_help(const std::string& word);

/// Returns the words that value_help explains, without formats that are spelled by their widths.
std::vector<std::string> value_words();

/// Returns "PATH = WORD" for every value of a key that has no explanation; a test requires none.
std::vector<std::string> unexplained_values();

}  // namespace fp8lab
