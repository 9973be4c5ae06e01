// The accepted name that a mistyped one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// The name that is nearest to `word`: fewest letters inserted, left out, replaced or swapped with
/// their neighbour, where capitals and small letters are one letter, and so are '-' and '_'. Else
/// the shortest name that begins with `word`. Empty where none is near: at most a third of the
/// letters may differ. The first of several equally near ones.
/// A name that is `word` and at most two letters more comes before them.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

/// " (did you mean 'infir2'?)" for messages about an unknown `word`; empty where no name is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

/// did_you_mean with the names of a list for messages, "bf16, fp32, or a path": what holds a space
/// is no name.
std::string did_you_mean(std::string_view word, std::string_view accepted);

}  // namespace fp8lab
