// Recipes as TOML files (design.md section 4).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/config.hpp"
#include "src/config/experiments.hpp"
#include "src/config/recipe_draft.hpp"
#include "src/config/toml_reader.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

// What recipes written before these choices existed do not say has no words here, so that their
// hashes stay.
std::string canonical_additions(const QuantSpec& spec) {
  std::string text;
  if (spec.format.encoding != numerics::Encoding::floating) {
    text += fmt::format("encoding {}\n", static_cast<int>(spec.format.encoding));
  }
  const numerics::ScaleRule plain;
  const numerics::ScaleRule& rule = spec.scale;
  const auto add = [&](const char* key, const auto& names, auto value, auto usual) {
    if (value != usual) text += fmt::format("{} {}\n", key, word_for(names, value));
  };
  add("epsilon_mode", kEpsilonModeNames, rule.epsilon_mode, plain.epsilon_mode);
  add("encode_limit", kEncodeLimitNames, rule.encode_limit, plain.encode_limit);
  add("scale_overflow", kScaleOverflowNames, rule.scale_overflow, plain.scale_overflow);
  add("four_over_six", kFourOverSixNames, rule.four_over_six, plain.four_over_six);
  if (spec.warmup_steps != 0) text += fmt::format("warmup_steps {}\n", spec.warmup_steps);
  if (spec.transform) text += "transform " + transform_name(spec.transform) + "\n";
  return text;
}

std::string canonical_text(const QuantSpec& spec) {
  const numerics::FormatSpec& format = spec.format;
  const std::string text = fmt::format(
      "format {} {} {} {} {} {} tile {} {} scale {} {} {} eps {} margin {} source {} static {} "
      "history {} {} rounding {} overflow {} orientation {} weight {}\n",
      format.exponent_bits, format.mantissa_bits, format.bias, static_cast<int>(format.specials),
      format.has_sign, format.has_subnormals, spec.tile.rows, spec.tile.cols,
      word_for(kScaleFormatNames, spec.scale.format),
      word_for(kScaleRoundingNames, spec.scale.rounding),
      word_for(kScaleArithmeticNames, spec.scale.arithmetic), spec.scale.amax_epsilon,
      spec.scale.margin, word_for(kScaleSourceNames, spec.scale_source), spec.static_scale,
      spec.history_length, word_for(kAmaxAlgorithmNames, spec.amax_algorithm),
      word_for(kRoundingNames, spec.rounding), word_for(kOverflowNames, spec.overflow),
      word_for(kOrientationSourceNames, spec.orientation_source),
      word_for(kWeightSourceNames, spec.weight_source));
  return text + canonical_additions(spec);
}

std::string canonical_text(const LinearRecipe& recipe) {
  std::string text;
  for (const Slot slot : kSlots) {
    text += slot_name(slot) + " " + canonical_text(recipe.slot(slot));
  }
  for (const GemmRole role : kGemmRoles) {
    const GemmSpec& gemm = recipe.gemm(role);
    text += fmt::format("{} {} {} order {} split_k {} output {}\n", gemm_role_name(role),
                        accumulator_name(gemm.accumulator), schedule_name(gemm),
                        word_for(kScaleOrderNames, gemm.scale_order), gemm.split_k,
                        word_for(kStorageNames, gemm.output));
  }
  return text;
}

// Every number of the recipe and nothing else: two files that mean the same have the same hash.
std::string canonical_text(const Recipe& recipe) {
  std::string text =
      fmt::format("fp8lab recipe 1\nactivations {}\n", name_of(recipe.activation_dtype));
  text += canonical_text(recipe.linear) + canonical_text(recipe.high_precision);
  for (const std::string& pattern : recipe.keep_high_precision) text += "keep " + pattern + "\n";
  for (const RecipeOverride& exception : recipe.overrides) {
    text += "override " + exception.match + "\n" + canonical_text(exception.recipe);
  }
  return text;
}

constexpr std::size_t kMostChoices = 256;

// The patterns without braces that `pattern` stands for; none when they are too many.
std::vector<std::string> without_braces(const std::string& pattern) {
  std::vector<std::string> done, open = {pattern};
  while (!open.empty() && done.size() + open.size() <= kMostChoices) {
    const std::string next = std::move(open.back());
    open.pop_back();
    const std::size_t begin = next.find('{'), end = next.find('}', begin);
    if (begin == std::string::npos || end == std::string::npos) {
      done.push_back(next);
      continue;
    }
    for (std::size_t first = begin + 1; first <= end && open.size() <= kMostChoices;) {
      const std::size_t last = std::min(next.find(',', first), end);
      open.push_back(next.substr(0, begin) + next.substr(first, last - first) +
                     next.substr(end + 1));
      first = last + 1;
    }
  }
  return open.empty() ? done : std::vector<std::string>();
}

// An index that a pattern's second part, "12", "*", "1*2" or "last", would match; at most 999.
int index_in(const std::string& pattern) {
  const std::size_t dot = pattern.find('.');
  if (dot == std::string::npos) return 0;
  std::string part = pattern.substr(dot + 1, pattern.find('.', dot + 1) - dot - 1);
  part.erase(std::remove(part.begin(), part.end(), '*'), part.end());
  int index = 0;
  const char* const end = part.data() + part.size();
  const auto [last, error] = std::from_chars(part.data(), end, index);
  return error == std::errc{} && last == end && index >= 0 && index < 1000 ? index : 0;
}

// True when some model could have a layer that `pattern` names; "first" and "last" are tried as the
// same layer, any index up to 999 by itself.
bool names_a_linear_layer(const std::string& pattern) {
  for (const std::string& plain : without_braces(pattern)) {
    if (layer_pattern_matches(plain, "lm_head", 1)) return true;
    const int index = index_in(plain);
    const std::string layer = fmt::format("layers.{}.", index);
    for (const char* linear : {"attention.qkv", "attention.o", "mlp.gate_up", "mlp.down"}) {
      if (layer_pattern_matches(plain, layer + linear, index + 1)) return true;
    }
  }
  return false;
}

// Modules that no recipe quantizes; files may list them for the reader's sake.
bool names_an_unquantized_module(const std::string& pattern) {
  for (const std::string& plain : without_braces(pattern)) {
    for (const char* module : {"embed", "norm", "attention.core"}) {
      if (layer_pattern_matches(plain, module, 1)) return true;
    }
  }
  return false;
}

constexpr const char* kLayerNames =
    "layers.N.attention.qkv, layers.N.attention.o, layers.N.mlp.gate_up, layers.N.mlp.down, "
    "lm_head, where N is an index, first, last or *, and {a,b} lists choices, at most 256 in all";

// Reads the exceptions; `draft` is the recipe of every other layer.
std::vector<RecipeOverride> read_overrides(TomlReader& document, const RecipeDraft& base) {
  std::vector<RecipeOverride> overrides;
  for (TomlReader& table : document.tables("override")) {
    RecipeOverride exception;
    exception.match = table.text("match", "");
    if (!names_a_linear_layer(exception.match)) {
      table.refuse("match", "'" + exception.match + "', which names no linear layer", kLayerNames);
    }
    RecipeDraft draft = base.inherited();
    draft.read(table);
    table.finish();
    exception.recipe = draft.resolve();
    try {
      validate(exception.recipe, table.where());
    } catch (const RecipeError& error) {
      throw Error(fmt::format("{}: '{}' (override \"{}\"): {}",
                              locate_recipe_key(table.raw(), error.key, table.where()), error.key,
                              exception.match, error.message));
    }
    overrides.push_back(std::move(exception));
  }
  return overrides;
}

std::vector<std::string> read_kept_modules(TomlReader& document) {
  std::optional<TomlReader> table = document.table("keep_high_precision");
  if (!table) return {};
  const std::vector<std::string> modules = table->texts("modules");
  for (const std::string& pattern : modules) {
    if (names_a_linear_layer(pattern) || names_an_unquantized_module(pattern)) continue;
    table->refuse("modules", "holding '" + pattern + "', which names no module",
                  std::string(kLayerNames) + "; also embed, norm, attention.core");
  }
  table->finish();
  return modules;
}

std::string read_name(TomlReader& document) {
  const std::string name = document.text("name", "");
  const bool plain =
      !name.empty() &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
          std::string::npos;
  if (!plain) {
    document.refuse("name", name.empty() ? "missing" : "'" + name + "'",
                    "letters, digits, '_', '-' and '.'");
  }
  return name;
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& origin) {
  const toml::table root = parse_toml(text, origin);
  TomlReader document(root, "", origin);
  Recipe recipe;
  recipe.text = text;
  recipe.name = read_name(document);
  recipe.summary = document.text("summary", "");
  recipe.activation_dtype = document.choice("activations", kStorageNames, DType::bf16);
  recipe.high_precision = high_precision_recipe(recipe.activation_dtype);

  RecipeDraft draft(recipe.activation_dtype);
  draft.read(document);
  recipe.keep_high_precision = read_kept_modules(document);
  recipe.overrides = read_overrides(document, draft);
  document.finish();
  recipe.linear = draft.resolve();
  try {
    validate(recipe.linear, origin);
  } catch (const RecipeError& error) {
    throw Error(fmt::format("{}: '{}': {}", locate_recipe_key(root, error.key, origin), error.key,
                            error.message));
  }
  const std::string canonical = canonical_text(recipe);
  recipe.hash = hex16(xxh3(canonical.data(), canonical.size()));
  return recipe;
}

Recipe load_recipe(const std::string& name_or_path) {
  const std::string file = find_experiment("recipes", name_or_path, "").string();
  return parse_recipe(read_file(file), file);
}

std::vector<std::string> builtin_recipe_names() { return experiment_names("recipes"); }

}  // namespace fp8lab
