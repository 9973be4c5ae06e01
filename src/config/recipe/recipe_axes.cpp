#include "src/config/recipe/recipe_axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/config/reading/overlay.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/recipe/recipe_fields.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kMostCombinations = 64;

struct RecipeAxis {
  std::string name;
  std::vector<std::string> values;
  bool has_summaries = false;
};

/// The value of each axis, by the axis' name.
using Combination = std::map<std::string, std::string>;

// Adds the dotted paths of the keys that `table` sets; a list is one key.
void add_keys(const toml::table& table, const std::string& path, std::set<std::string>& keys) {
  for (auto&& [key, node] : table) {
    const std::string name = path + std::string(key.str());
    if (const toml::table* const inner = node.as_table()) {
      add_keys(*inner, name + ".", keys);
    } else {
      keys.insert(name);
    }
  }
}

// Reads one axis; `owners` has the axis that sets each key so far.
RecipeAxis read_axis(TomlReader& axes, const std::string& name,
                     std::map<std::string, std::string>& owners) {
  TomlReader reader = *axes.table(name);
  RecipeAxis axis{name, {}};
  std::set<std::string> keys;
  for (auto&& [value, node] : reader.raw()) {
    axis.values.emplace_back(value.str());
    TomlReader own = *reader.table(axis.values.back());
    add_keys(own.raw(), "", keys);
    if (!own.text("summary", "").empty()) axis.has_summaries = true;
  }
  if (axis.values.empty())
    axes.refuse(name, {.found = "an axis without values", .accepted = "[axis.NAME.VALUE]"});
  keys.erase("summary");
  for (const std::string& key : keys) {
    if (key == "name" || key.starts_with("name.")) {
      axes.fail(name, {.reason = "a value sets 'name', which the file composes"});
    }
    const auto [owner, is_new] = owners.emplace(key, name);
    if (!is_new)
      axes.fail(name, {.reason = fmt::format("sets '{}', as axis '{}' does", key, owner->second)});
  }
  return axis;
}

std::vector<RecipeAxis> read_recipe_axes(TomlReader& document) {
  std::vector<RecipeAxis> found;
  std::map<std::string, std::string> owners;
  std::optional<TomlReader> axes = document.table("axis");
  if (!axes) return found;
  std::size_t combinations = 1;
  for (auto&& [name, node] : axes->raw()) {
    const toml::table* const values = node.as_table();
    combinations *= values == nullptr ? 1 : std::max<std::size_t>(values->size(), 1);
    if (combinations > kMostCombinations) {
      document.refuse("axis", {.found = fmt::format("at least {} combinations", combinations),
                               .accepted = fmt::format("at most {}", kMostCombinations)});
    }
    found.push_back(read_axis(*axes, std::string(name.str()), owners));
  }
  if (found.empty())
    document.refuse("axis", {.found = "without axes", .accepted = "[axis.NAME.VALUE]"});
  return found;
}

// Returns `text` with each "{AXIS}" replaced by the axis' word. Words are not searched again.
std::string composed(const std::string& text, const Combination& words) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '{' ? text.find('}', at) : std::string::npos;
    const auto word =
        end == std::string::npos ? words.end() : words.find(text.substr(at + 1, end - at - 1));
    if (word == words.end()) {
      result += text[at++];
    } else {
      result += word->second;
      at = end + 1;
    }
  }
  return result;
}

bool contains_mark(const std::string& text, const RecipeAxis& axis) {
  return text.find("{" + axis.name + "}") != std::string::npos;
}

// Throws if a summary of a value would not be used.
void check_summary(const TomlReader& document, const std::vector<RecipeAxis>& axes,
                   const std::string& summary) {
  for (const RecipeAxis& axis : axes) {
    if (!axis.has_summaries || contains_mark(summary, axis)) continue;
    document.refuse("summary", {.found = fmt::format("'{}'", summary),
                                .reason = fmt::format(
                                    ", which lacks {{{}}}, whose values have summaries", axis.name),
                                .accepted = "a summary that contains it"});
  }
}

// Returns the combinations by the names that `document` composes for them.
std::map<std::string, Combination> combinations(TomlReader& document) {
  const std::vector<RecipeAxis> axes = read_recipe_axes(document);
  if (axes.empty()) return {};
  std::vector<Combination> all = {{}};
  for (const RecipeAxis& axis : axes) {
    std::vector<Combination> longer;
    for (const Combination& shorter : all) {
      for (const std::string& value : axis.values) {
        longer.push_back(shorter);
        longer.back()[axis.name] = value;
      }
    }
    all = std::move(longer);
  }
  const std::string pattern = document.text("name", "");
  for (const RecipeAxis& axis : axes) {
    if (contains_mark(pattern, axis)) continue;
    document.refuse("name", {.found = fmt::format("'{}'", pattern),
                             .reason = fmt::format(", which lacks {{{}}}", axis.name),
                             .accepted = "a name that contains every axis"});
  }
  check_summary(document, axes, document.text("summary", ""));
  std::map<std::string, Combination> named;
  for (const Combination& combination : all) {
    const std::string name = composed(pattern, combination);
    if (!is_recipe_name(name)) {
      document.refuse("name", {.found = fmt::format("'{}'", name),
                               .reason = "for one combination",
                               .accepted = "letters, digits, '_', '-' and '.'"});
    }
    if (!named.emplace(name, combination).second) {
      document.refuse("name", {.found = fmt::format("'{}'", name),
                               .reason = "for two combinations",
                               .accepted = "different names"});
    }
  }
  return named;
}

// Moves the keys of a value of an axis into `document`. Returns its word for the summary.
std::string apply_value(toml::table& document, toml::table& axis, const std::string& value) {
  toml::table& keys = *axis.get_as<toml::table>(value);
  const std::string word = keys["summary"].value_or(value);
  keys.erase("summary");
  overlay(document, keys);
  return word;
}

}  // namespace

std::vector<std::string> names_by_axes(const toml::table& document, const std::string& origin) {
  TomlReader reader(document, "", origin);
  std::vector<std::string> names;
  for (const auto& [name, combination] : combinations(reader)) names.push_back(name);
  return names;
}

void choose_by_axes(toml::table& document, const std::string& name, const std::string& origin) {
  if (!document.contains("axis")) return;
  TomlReader reader(document, "", origin);
  const std::map<std::string, Combination> named = combinations(reader);
  const auto chosen = named.find(name);
  if (chosen == named.end()) {
    reader.refuse("axis",
                  {.found = fmt::format("of {} recipes, none of which a path names", named.size()),
                   .accepted = fmt::format("a file without [axis]; recipes of a file with axes "
                                           "have names in experiments/recipes alone: {}",
                                           join_names(names_by_axes(document, origin)))});
  }
  toml::table axes = std::move(*document.get_as<toml::table>("axis"));
  document.erase("axis");
  Combination words;
  for (const auto& [axis, value] : chosen->second) {
    words[axis] = apply_value(document, *axes.get_as<toml::table>(axis), value);
  }
  document.insert_or_assign("name", name);
  if (const std::optional<std::string> summary = document["summary"].value<std::string>()) {
    document.insert_or_assign("summary", composed(*summary, words));
  }
}

}  // namespace fp8lab
