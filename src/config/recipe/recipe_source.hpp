// Where recipes are: the files of experiments/recipes by name, or a path.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// One recipe: its file, and its name among the recipes of that file.
struct RecipeSource {
  std::string name;    ///< empty for a path
  std::string folder;  ///< below experiments/recipes, "infir2"; empty for a path
  std::filesystem::path file;
};

/// Returns the recipes of `directory` and its folders, sorted by name: the stem of each TOML file,
/// or the names by the axes of a file that has some. Throws Error if two recipes have one name.
std::vector<RecipeSource> recipe_sources(const std::filesystem::path& directory);

/// Returns recipe_sources of experiments/recipes, which are read once in a process.
const std::vector<RecipeSource>& builtin_recipes();

/// Finds a recipe by name or by path (anything that ends in .toml or contains a slash). Throws
/// Error that starts with `where`, if not empty, for an unknown name and a missing file.
RecipeSource find_recipe(const std::string& name_or_path, const std::string& where);

/// Loads a recipe. Throws Error with file:line; also for a path of a file with axes, since a path
/// does not say which of its recipes is meant.
Recipe load_recipe(const RecipeSource& source);

}  // namespace fp8lab
