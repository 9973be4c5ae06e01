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

/// Returns the sorted names (file stems) of the TOML files of one folder, for example "presets".
/// Recipes are in folders of their own: builtin_recipe_names.
std::vector<std::string> experiment_names(const std::string& folder);

/// Returns the first sentence of the comment at the top of a file; empty without a comment.
std::string experiment_summary(const std::filesystem::path& file);

/// Returns true for a path, which ends in .toml or contains a slash, and false for a name.
bool is_experiment_path(const std::string& name_or_path);

/// Returns `path`. Throws Error that starts with `where`, if not empty, if there is no such file.
std::filesystem::path existing_experiment(const std::string& folder,
                                          const std::filesystem::path& path,
                                          const std::string& where);

/// Throws Error that starts with `where`, if not empty: `name` is none of `names`.
[[noreturn]] void refuse_experiment(const std::string& folder, const std::string& name,
                                    const std::vector<std::string>& names,
                                    const std::string& where);

/// Finds a file by name ("quickstart" in "presets") or by path. Throws Error that starts with
/// `where`, if not empty, and lists the known names.
std::filesystem::path find_experiment(const std::string& folder, const std::string& name_or_path,
                                      const std::string& where);

}  // namespace fp8lab
