// Recipe files with axes: one file for all combinations of a few settings.
#pragma once

#include <string>
#include <vector>

#include <toml++/toml.h>

namespace fp8lab {

/// Returns the names of the recipes of a file with axes, one for each combination of their values;
/// empty without [axis]. Throws Error with file:line if an axis has no values, if the file's name
/// does not contain every axis as "{AXIS}", if a name is unusable or that of two combinations, if
/// two axes set one key, and for more than 64 combinations.
std::vector<std::string> names_by_axes(const toml::table& document, const std::string& origin);

/// Turns a document with axes into that of its recipe `name`: sets the keys of its values, name and
/// summary. Leaves a document without axes as it is. Throws Error that lists the recipes if none
/// has that name.
void choose_by_axes(toml::table& document, const std::string& name, const std::string& origin);

}  // namespace fp8lab
