#include "src/config/recipe/recipe_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/recipe/recipe_axes.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const fs::path& file) {
  const std::string text = read_file(file);
  // Most files have no axes; a name is looked up without parsing them.
  if (text.find("axis") != std::string::npos) {
    std::vector<std::string> names = names_by_axes(parse_toml(text, file.string()), file.string());
    if (!names.empty()) return names;
  }
  return {file.stem().string()};
}

}  // namespace

std::vector<RecipeSource> recipe_sources(const fs::path& directory) {
  std::vector<RecipeSource> sources;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(directory, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::path& file = entry->path();
    if (file.extension() != ".toml") continue;
    const std::string folder = file.parent_path().lexically_relative(directory).string();
    for (std::string& name : names_of(file)) {
      sources.push_back({std::move(name), folder == "." ? "" : folder, file});
    }
  }
  if (error) throw InputError({.where = directory.string(), .reason = error.message()});
  std::sort(sources.begin(), sources.end(), [](const RecipeSource& a, const RecipeSource& b) {
    return std::pair(a.name, a.file) < std::pair(b.name, b.file);
  });
  const auto same =
      std::adjacent_find(sources.begin(), sources.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (same != sources.end()) {
    throw InputError({.reason = fmt::format("recipe '{}' is in {} and in {}", same->name,
                                            same->file.string(), std::next(same)->file.string()),
                      .accepted = "one of a name"});
  }
  return sources;
}

const std::vector<RecipeSource>& builtin_recipes() {
  static const std::vector<RecipeSource> sources =
      recipe_sources(experiments_directory() / "recipes");
  return sources;
}

RecipeSource find_recipe(const std::string& name_or_path, const std::string& where) {
  if (is_experiment_path(name_or_path)) {
    return {"", "", existing_experiment("recipes", name_or_path, where)};
  }
  const std::vector<RecipeSource>& sources = builtin_recipes();
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const auto& source) { return source.name == name_or_path; });
  if (found != sources.end()) return *found;
  std::vector<std::string> names;
  for (const RecipeSource& source : sources) names.push_back(source.name);
  refuse_experiment("recipes", name_or_path, names, where);
}

}  // namespace fp8lab
