// Finds the accepted name that a mistyped one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Returns the name nearest to `word`, by the number of letters inserted, omitted, replaced or
/// swapped with their neighbour. Case is ignored, and '-' equals '_'. At most a third of the
/// letters may differ. If no name is that near, returns the shortest name that begins with `word`,
/// else an empty text. Among equally near names the first is chosen.
/// A name that extends `word` by at most two letters takes precedence.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

/// Returns " (did you mean 'infir2'?)" for messages about an unknown `word`;
/// empty if no name is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

/// did_you_mean with the names of a printed list, "bf16, fp32, or a path"; entries that
/// contain a space are not names.
std::string did_you_mean(std::string_view word, std::string_view accepted);

}  // namespace fp8lab
