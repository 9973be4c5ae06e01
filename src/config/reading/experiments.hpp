// The location of the data files that come with the program: recipes, models,
// stages, presets, studies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fp8lab {

/// Returns the first experiments folder that exists: beside the module of a Python package;
/// PREFIX/share/fp8lab/experiments for an installed PREFIX/bin/fp8lab; in the source tree above
/// the program or the module, even if the tree was moved; in the source tree at build time.
/// Throws Error if none exists.
std::filesystem::path experiments_directory();

/// Returns the sorted names (file stems) of the TOML files of one folder, for example "recipes".
std::vector<std::string> experiment_names(const std::string& folder);

/// Returns the first sentence of the comment at the top of a file; empty without a comment.
std::string experiment_summary(const std::filesystem::path& file);

/// Finds a file by name ("infir2" in "recipes") or by path (anything that ends in .toml or contains
/// a slash). Throws Error that starts with `where`, if not empty, and lists the known names.
std::filesystem::path find_experiment(const std::string& folder, const std::string& name_or_path,
                                      const std::string& where);

}  // namespace fp8lab
