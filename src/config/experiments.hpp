// Where the data files that come with the program live: recipes, models, stages, presets, studies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fp8lab {

/// The experiments folder: the one beside the module of a Python package, else
/// PREFIX/share/fp8lab/experiments beside an installed PREFIX/bin/fp8lab, else the one of the
/// source tree that the program or the module lies in, wherever that is now, else the one of the
/// source tree that was built. Throws Error when none exists.
std::filesystem::path experiments_directory();

/// Names (file stems) of the TOML files of one folder, for example "recipes", sorted.
std::vector<std::string> experiment_names(const std::string& folder);

/// A file by name ("infir2" in "recipes") or by path (anything that ends in .toml or holds a
/// slash). Throws Error that starts with `where`, if any, and lists the known names.
std::filesystem::path find_experiment(const std::string& folder, const std::string& name_or_path,
                                      const std::string& where);

}  // namespace fp8lab
