// Finds the accepted name that a mistyped one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Returns the names nearest to `word`, by the number of letters inserted, omitted, replaced or
/// swapped with their neighbour: all that are equally near, in their order. Case is ignored, and
/// '-' equals '_'. At most a third of the letters may differ; a word of up to three letters with
/// one replaced is another word (gpu, cpu). If no name is that near, returns the shortest name that
/// begins with `word`, else nothing. The name of name_elsewhere takes precedence, and one that
/// extends `word` by at most two letters.
std::vector<std::string> nearest_names(std::string_view word,
                                       const std::vector<std::string>& names);

/// Returns the first of `names` that other programs call `word`; empty if there is none. '-' equals
/// '_'.
std::string name_elsewhere(std::string_view word, const std::vector<std::string>& names);

/// Returns the first of nearest_names; empty if there is none.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

/// Returns " (did you mean 'infir2'?)", or "'row' or 'rows'" for up to five equally near names, for
/// messages about an unknown `word`; empty if no name is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

/// did_you_mean with the names of a printed list, "bf16, fp32, or a path"; entries that
/// contain a space are not names.
std::string did_you_mean(std::string_view word, std::string_view accepted);

}  // namespace fp8lab
