// Recipe files with axes: one file holds a recipe for each combination of the axes' values.
#pragma once

#include <string>
#include <vector>

#include <toml++/toml.h>

namespace fp8lab {

/// Returns the names of the recipes of a file with axes, one for each combination of values; empty
/// without [axis]. Throws Error with file:line if an axis has no values, a value sets `name`, two
/// axes set the same key, the key `name` lacks an axis ("{AXIS}"), `summary` lacks one whose values
/// have summaries, a composed name has other characters than recipe names or occurs twice, or there
/// are more than 64 combinations.
std::vector<std::string> names_by_axes(const toml::table& document, const std::string& origin);

/// Turns a document with axes into the document of its recipe `name`: removes [axis], sets the keys
/// of the recipe's values, `name` and `summary`. Does nothing without axes. Throws Error that lists
/// the recipes if none has that name.
void choose_by_axes(toml::table& document, const std::string& name, const std::string& origin);

}  // namespace fp8lab
