// Recipes as TOML files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/config/reading/overlay.hpp"
#include "src/config/recipe/attention_table.hpp"
#include "src/config/recipe/recipe_axes.hpp"
#include "src/config/recipe/recipe_draft.hpp"
#include "src/config/recipe/recipe_fields.hpp"
#include "src/config/recipe/recipe_source.hpp"
#include "src/config/recipe/saved_activations.hpp"
#include "src/config/tables/table.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

// Returns the keys of a slot or GEMM that have an effect and are not at their default. A new key
// therefore does not change the hashes of recipes that do not use it.
template <class S>
std::string canonical_text(const Fields<S>& fields, const S& spec) {
  const S plain;
  std::string text;
  for (const Field<S>& field : fields) {
    const FieldValue value = field.get(spec);
    if (!field.matters(spec) || value == field.get(plain)) continue;
    text += fmt::format(" {} = {}", field.word, toml_text(value));
  }
  return text + "\n";
}

std::string canonical_text(const LinearRecipe& recipe) {
  std::string text;
  for (const Slot slot : kSlots) {
    text += slot_name(slot) + canonical_text(quant_fields(), recipe.slot(slot));
  }
  for (const GemmRole role : kGemmRoles) {
    text += gemm_role_name(role) + canonical_text(gemm_fields(), recipe.gemm(role));
  }
  return text;
}

// Returns all settings of the recipe that affect the arithmetic and nothing else: two files with
// the same meaning have the same hash.
std::string canonical_text(const Recipe& recipe) {
  std::string text =
      fmt::format("fp8lab recipe 2\nactivations {}\n", name_of(recipe.activation_dtype));
  text += canonical_text(recipe.linear) + canonical_text(recipe.high_precision);
  for (const std::string& pattern : recipe.keep_high_precision) text += "keep " + pattern + "\n";
  for (const RecipeOverride& exception : recipe.overrides) {
    text += "override " + exception.match + "\n" + canonical_text(exception.recipe);
  }
  for (const SavedActivation& saved : recipe.saved_activations) {
    text += "saved " + (saved.name.empty() ? "default" : saved.name);
    text += saved.is_recomputed ? " recompute\n" : canonical_text(quant_fields(), saved.spec);
  }
  for (const AttentionSlot slot : kAttentionSlots) {
    if (!recipe.attention.has(slot)) continue;
    const AttentionQuantizer& quantizer = *recipe.attention.slots[slot];
    text += fmt::format("attention {} {}", name_of(slot), name_of(quantizer.tile));
    text += canonical_text(quant_fields(), quantizer.spec);
  }
  return text;
}

// Reads the exceptions; `draft` is the recipe of all other layers.
std::vector<RecipeOverride> read_overrides(TomlReader& document, const RecipeDraft& base) {
  const LayerNames& names = layer_names_of_any_model();
  std::vector<RecipeOverride> overrides;
  for (TomlReader& table : document.tables("override")) {
    RecipeOverride exception;
    exception.match = table.text("match", "");
    if (!names_one_of(exception.match, names.linears)) {
      table.refuse("match", {.found = fmt::format("'{}'", exception.match),
                             .reason = ", which names no linear layer",
                             .accepted = names.accepted_linears()});
    }
    RecipeDraft draft = base.inherited();
    draft.read(table);
    table.finish();
    exception.recipe = draft.resolve();
    try {
      validate(exception.recipe, table.where());
    } catch (const RecipeError& error) {
      ErrorFields fields = error.fields();
      fields.where =
          fmt::format("{}, override \"{}\"",
                      locate_recipe_key(table.raw(), fields.key, table.where()), exception.match);
      throw InputError(std::move(fields));
    }
    overrides.push_back(std::move(exception));
  }
  return overrides;
}

std::vector<std::string> read_kept_modules(TomlReader& document) {
  std::optional<TomlReader> table = document.table("keep_high_precision");
  if (!table) return {};
  const std::vector<std::string> modules = table->texts("modules");
  const LayerNames& names = layer_names_of_any_model();
  for (const std::string& pattern : modules) {
    if (names_one_of(pattern, names.linears) || names_one_of(pattern, names.unquantized)) continue;
    table->refuse("modules", {.verb = "is holding",
                              .found = fmt::format("'{}'", pattern),
                              .reason = ", which names no module",
                              .accepted = names.accepted_modules()});
  }
  table->finish();
  return modules;
}

constexpr int kMostBases = 8;

// Resolves a path relative to the file that contains it.
std::string beside(const std::string& origin, const std::string& name_or_path) {
  const bool is_path =
      name_or_path.ends_with(".toml") || name_or_path.find('/') != std::string::npos;
  if (!is_path) return name_or_path;
  const std::filesystem::path folder = std::filesystem::path(origin).parent_path();
  return (folder / name_or_path).lexically_normal().string();
}

// Overlays the keys of `document` on those of the recipe named by `base`. Name and summary are
// always the document's own. `depth` is the number of bases followed so far.
void resolve_base(toml::table& document, const std::string& origin, int depth) {
  const toml::node* const base = document.get("base");
  if (base == nullptr) return;
  TomlReader reader(document, "", origin);
  const std::string name = reader.text("base", "");
  if (depth == kMostBases) {
    reader.refuse("base",
                  {.found = fmt::format("the base of {} others", kMostBases), .accepted = "fewer"});
  }
  const RecipeSource source = find_recipe(beside(origin, name), reader.where("base"));
  const std::string file = source.file.string();
  toml::table merged = parse_toml(read_file(source.file), file);
  choose_by_axes(merged, source.name, file);
  resolve_base(merged, file, depth + 1);
  for (const std::string_view own : {"name", "summary"}) merged.erase(own);
  document.erase("base");
  overlay(merged, document);
  document = std::move(merged);
}

std::string text_of(const toml::table& document) {
  std::ostringstream text;
  text << document << "\n";
  return text.str();
}

}  // namespace

bool is_recipe_name(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string_view::npos;
}

const Fields<Recipe>& recipe_fields() {
  using S = Recipe;
  static const Fields<S> rows = {
      fields::text("name", &S::name, "letters, digits, '_', '-' and '.'",
                   "as runs and tables say it", is_recipe_name)
          .required(),
      fields::text("summary", &S::summary, "a string", "one line"),
      fields::text("system", &S::system, "a string", "the published system, for recipes list"),
      fields::text("source", &S::source, "a string", "where the numerics are written down"),
      fields::choice("activations", &S::activation_dtype, kStorageNames,
                     "storage of activations and their gradients"),
  };
  return rows;
}

namespace {

// `root` has no base. `text` is what the run file records of a recipe that no other file completes;
// empty otherwise.
Recipe read_whole_recipe(const toml::table& root, const std::string& text,
                         const std::string& origin) {
  TomlReader document(root, "", origin);
  Recipe recipe;
  recipe.text = text.empty() ? text_of(root) : text;
  read_fields(document, recipe_fields(), recipe);
  settle_fields(document, recipe_fields(), recipe);
  recipe.high_precision = high_precision_recipe(recipe.activation_dtype);

  RecipeDraft draft(recipe.activation_dtype);
  draft.read(document);
  recipe.keep_high_precision = read_kept_modules(document);
  recipe.overrides = read_overrides(document, draft);
  recipe.saved_activations = read_saved_activations(document, recipe.activation_dtype);
  recipe.attention = read_attention(document, recipe.activation_dtype);
  const auto core = std::find(recipe.keep_high_precision.begin(), recipe.keep_high_precision.end(),
                              "attention.core");
  if (!recipe.attention.empty() && core != recipe.keep_high_precision.end()) {
    document.fail("attention", {.reason = "quantizes attention.core, which "
                                          "keep_high_precision.modules keeps",
                                .accepted = "one of the two"});
  }
  document.finish();
  recipe.linear = draft.resolve();
  try {
    validate(recipe.linear, origin);
  } catch (const RecipeError& error) {
    ErrorFields fields = error.fields();
    fields.where = locate_recipe_key(root, fields.key, origin);
    throw InputError(std::move(fields));
  }
  const std::string canonical = canonical_text(recipe);
  recipe.hash = hex16(xxh3(canonical.data(), canonical.size()));
  return recipe;
}

// As read_whole_recipe. A key of the base that the file contradicts is an error of the file.
Recipe read_recipe(toml::table root, const std::string& text, const std::string& origin) {
  resolve_base(root, origin, 0);
  try {
    return read_whole_recipe(root, text, origin);
  } catch (const InputError& error) {
    ErrorFields fields = error.fields();
    if (fields.where.starts_with(origin)) throw;
    if (!fields.reason.empty()) fields.reason += " ";
    fields.reason += fmt::format("(the key is in its base, {})", fields.where);
    fields.where = origin;
    throw InputError(std::move(fields));
  }
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& origin) {
  toml::table root = parse_toml(text, origin);
  require_kind(root, DocumentKind::recipe, origin);
  choose_by_axes(root, "", origin);
  const bool is_whole = !root.contains("base");
  return read_recipe(std::move(root), is_whole ? text : "", origin);
}

std::vector<Recipe> parse_recipes(const std::string& text, const std::string& origin) {
  const toml::table document = parse_toml(text, origin);
  require_kind(document, DocumentKind::recipe, origin);
  const std::vector<std::string> names = names_by_axes(document, origin);
  if (names.empty()) return {parse_recipe(text, origin)};
  std::vector<Recipe> recipes;
  for (const std::string& name : names) {
    toml::table root = parse_toml(text, origin);
    choose_by_axes(root, name, origin);
    recipes.push_back(read_recipe(std::move(root), "", origin));
  }
  return recipes;
}

Recipe load_recipe(const RecipeSource& source) {
  const std::string text = read_file(source.file), origin = source.file.string();
  toml::table root = parse_toml(text, origin);
  require_kind(root, DocumentKind::recipe, origin);
  const bool is_whole = !root.contains("base") && !root.contains("axis");
  choose_by_axes(root, source.name, origin);
  return read_recipe(std::move(root), is_whole ? text : "", origin);
}

Recipe load_recipe(const std::string& name_or_path) {
  return load_recipe(find_recipe(name_or_path, ""));
}

Recipe load_recipe(const std::string& name, const RecipeTexts& recorded) {
  const auto found = recorded.find(name);
  return found == recorded.end() ? load_recipe(name)
                                 : parse_recipe(found->second, "recorded recipe " + name);
}

std::vector<std::string> builtin_recipe_names() {
  std::vector<std::string> names;
  for (const RecipeSource& source : builtin_recipes()) names.push_back(source.name);
  return names;
}

}  // namespace fp8lab
