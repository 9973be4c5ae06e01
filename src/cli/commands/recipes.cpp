// fp8lab recipes: lists the built-in recipes and checks recipe files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/architecture/parts.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/recipe_source.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab::cli {
namespace {

using Json = nlohmann::ordered_json;

Options recipe_options() {
  Options options("fp8lab recipes list | show NAME | check FILE");
  options.add("action", value<std::string>(), "list, show or check");
  options.add("name", value<std::string>(), "recipe name (show) or file (show, check)");
  options.add("model", value<std::string>(),
              "model by name or folder, whose layers the patterns of the recipe must match");
  options.add("tokens", value<std::int64_t>(1024), "M of the layer warned about");
  options.add("in", value<std::int64_t>(1024), "its input features");
  options.add("out", value<std::int64_t>(4096), "its output features");
  options.add("json", "machine-readable");
  return options;
}

Json json_of(const FieldValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::get<std::string>(value);
}

template <class S>
Json to_json(const Fields<S>& fields, const S& spec) {
  Json json;
  for (const Field<S>& field : fields) json[field.word] = json_of(field.get(spec));
  return json;
}

Json to_json(const LinearRecipe& recipe) {
  Json json;
  for (const Slot slot : kSlots) {
    json["slots"][slot_name(slot)] = to_json(quant_fields(), recipe.slot(slot));
  }
  for (const GemmRole role : kGemmRoles) {
    json["gemms"][gemm_role_name(role)] = to_json(gemm_fields(), recipe.gemm(role));
  }
  return json;
}

Json to_json(const Recipe& recipe, const std::vector<std::string>& found) {
  Json json;
  json["name"] = recipe.name;
  json["summary"] = recipe.summary;
  json["system"] = recipe.system;
  json["source"] = recipe.source;
  json["evidence"] = evidence_name(evidence(recipe));
  json["hash"] = recipe.hash;
  json["activations"] = word_for(kStorageNames, recipe.activation_dtype);
  json["linear"] = to_json(recipe.linear);
  json["keep_high_precision"] = recipe.keep_high_precision;
  json["overrides"] = Json::array();
  for (const RecipeOverride& exception : recipe.overrides) {
    json["overrides"].push_back(
        {{"match", exception.match}, {"linear", to_json(exception.recipe)}});
  }
  json["warnings"] = found;
  return json;
}

/// Returns all recipes by the folder of their files, both sorted by name.
std::map<std::string, std::vector<Recipe>> recipes_by_folder() {
  std::map<std::string, std::vector<Recipe>> folders;
  for (const RecipeSource& source : builtin_recipes()) {
    folders[source.folder].push_back(load_recipe(source));
  }
  return folders;
}

int list(const Values& values) {
  const auto folders = recipes_by_folder();
  Json rows = Json::array();
  for (const auto& [folder, recipes] : folders) {
    for (const Recipe& recipe : recipes) {
      rows.push_back({{"name", recipe.name},
                      {"folder", folder},
                      {"system", recipe.system},
                      {"summary", recipe.summary},
                      {"source", recipe.source},
                      {"evidence", evidence_name(evidence(recipe))},
                      {"hash", recipe.hash}});
    }
  }
  if (values.count("json") != 0) {
    fmt::print("{}\n", json_text(rows));
    return ExitCode::kSuccess;
  }
  fmt::print(
      "Recipes by folder of experiments/recipes, one for each system. Evidence is for what the "
      "GEMMs "
      "return:\nmeasured on our hardware, published, or the definition itself. `recipes show NAME` "
      "has the source.\n");
  for (const auto& [folder, recipes] : folders) {
    fmt::print("\n{}/  {}\n", folder, recipes.front().system);
    for (const Recipe& recipe : recipes) {
      fmt::print("  {:<24} {:<11} {}\n", recipe.name, evidence_name(evidence(recipe)),
                 recipe.summary);
    }
  }
  return ExitCode::kSuccess;
}

/// Returns the warnings about a layer of the shape that the options name.
std::vector<std::string> warnings(const Recipe& recipe, const Values& values) {
  std::array<std::int64_t, 3> shape{};
  const std::array<const char*, 3> names = {"tokens", "in", "out"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    shape[i] = values[names[i]].as<std::int64_t>();
    if (shape[i] < 1)
      throw InputError({.where = "recipes",
                        .key = fmt::format("--{}", names[i]),
                        .reason = "must be at least 1"});
  }
  return fp8lab::warnings(recipe.linear, shape[0], shape[1], shape[2]);
}

/// Returns the number of layers of `model` that each override of a recipe decides, a line each.
std::string overridden_layers(const Recipe& recipe, const ModelConfig& model) {
  const auto count = static_cast<int>(model.layer_count());
  const Declaration declaration = declaration_of(model);
  const std::vector<LinearDeclaration>& linears = declaration.linears();
  std::string text;
  for (const RecipeOverride& exception : recipe.overrides) {
    const auto decided =
        std::count_if(linears.begin(), linears.end(), [&](const LinearDeclaration& linear) {
          return &recipe.for_layer(linear.name, count) == &exception.recipe;
        });
    text +=
        fmt::format("override {}: {} of {} layers{}\n", exception.match, decided, linears.size(),
                    decided > 0 ? "" : ", since what stands before it has its layers");
  }
  return text;
}

/// Compares the patterns of a recipe with the model of --model; without it, says that nothing is
/// compared. Throws Error for a pattern that matches nothing in the model.
std::string checked_patterns(const Recipe& recipe, const Values& values) {
  if (values.count("model") != 0) {
    const ModelConfig model = load_model(values["model"].as<std::string>());
    check_layer_names(recipe, model, "recipes");
    return overridden_layers(recipe, model);
  }
  if (!recipe.overrides.empty()) {
    print_notes(
        {fmt::format("recipe {}: its overrides are compared with no model; --model NAME "
                     "checks that each of them matches a layer",
                     recipe.name)});
  }
  return {};
}

/// Prints one recipe, or the recipes of a file with axes: as JSON, one object or a list.
void print_recipes(const std::vector<Recipe>& recipes, const Values& values) {
  Json all = Json::array();
  for (const Recipe& recipe : recipes) {
    const std::vector<std::string> found = warnings(recipe, values);
    const std::string layers = checked_patterns(recipe, values);
    all.push_back(to_json(recipe, found));
    if (values.count("json") != 0) continue;
    fmt::print("{}{}", describe(recipe), layers);
    for (const std::string& line : found) fmt::print("warning: {}\n", line);
  }
  if (values.count("json") != 0) fmt::print("{}\n", json_text(all.size() == 1 ? all[0] : all));
}

int show(const Values& values) {
  print_recipes({load_recipe(required(values, "name", "recipes"))}, values);
  return ExitCode::kSuccess;
}

int check(const Values& values) {
  const std::string file = required(values, "name", "recipes");
  print_recipes(parse_recipes(read_file(file), file), values);
  return ExitCode::kSuccess;
}

}  // namespace

int recipes(const std::vector<std::string>& arguments) {
  const Values values =
      parse_arguments("recipes", recipe_options(), arguments, {{"action", 1}, {"name", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("action") == 0) return list(values);
  return run_action("recipes", values, "action",
                    {{"list", "", {"json"}, list},
                     {"show", "name", {"model", "tokens", "in", "out", "json"}, show},
                     {"check", "name", {"model", "tokens", "in", "out", "json"}, check}});
}

}  // namespace fp8lab::cli
