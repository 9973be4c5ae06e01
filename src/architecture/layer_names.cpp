#include "src/architecture/layer_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/architecture/model_names.hpp"
#include "src/architecture/parts.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kMostChoices = 256;
constexpr std::string_view kLayers = "layers.", kAnyLayer = "layers.N.";

void add(std::string name, std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

/// "layers.N.mlp.down" of "layers.3.mlp.down"; other names as they are.
std::string of_any_layer(const std::string& name, const std::optional<std::int64_t>& layer) {
  if (!layer) return name;
  return std::string(kAnyLayer) + name.substr(name.find('.', kLayers.size()) + 1);
}

void add_names(const Declaration& declaration, LayerNames& names) {
  std::vector<bool> is_of_linear(declaration.parameters().size(), false);
  for (const LinearDeclaration& linear : declaration.linears()) {
    const bool is_in_layer = linear.name != linear.module;
    add(is_in_layer ? std::string(kAnyLayer) + linear.module : linear.module, names.linears);
    if (!linear.is_tied) is_of_linear[static_cast<std::size_t>(linear.weight)] = true;
    if (linear.bias) is_of_linear[static_cast<std::size_t>(*linear.bias)] = true;
  }
  for (std::size_t i = 0; i < is_of_linear.size(); ++i) {
    if (is_of_linear[i]) continue;
    const ParameterDeclaration& parameter = declaration.parameters()[i];
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    add(of_any_layer(module, parameter.layer), names.unquantized);
  }
}

/// Expands `pattern` into patterns without braces; empty if there are too many.
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

/// Returns an index that matches a pattern's second part, "12", "*", "1*2" or "last"; at most 999.
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

/// `name` with N replaced.
std::string at_layer(const std::string& name, int index) {
  if (!name.starts_with(kAnyLayer)) return name;
  return fmt::format("{}{}.{}", kLayers, index, name.substr(kAnyLayer.size()));
}

/// Returns true if `pattern` matches one of `names` in one of the model's layers.
bool names_one_of(const std::string& pattern, const std::vector<std::string>& names,
                  const ModelConfig& model) {
  const auto layers = static_cast<int>(model.layer_count());
  const std::vector<std::string> choices = without_braces(pattern);
  for (int layer = 0; layer < layers; ++layer) {
    for (const std::string& name : names) {
      const std::string own = at_layer(name, layer);
      const bool found = std::any_of(choices.begin(), choices.end(), [&](const std::string& plain) {
        return layer_pattern_matches(plain, own, layers);
      });
      if (found) return true;
    }
  }
  return false;
}

/// Declares a model with everything that a LayerSpec can have, for each feed-forward block.
std::vector<Declaration> declarations_of_any_model() {
  std::vector<Declaration> all;
  for (const auto& kind : kFeedForwardKindNames) {
    ModelConfig model;
    model.set_layer_count(1);
    model.positions = PositionKind::learned;
    LayerSpec& layer = model.layers.front();
    layer.norm_place = NormPlace::both;
    layer.attention.qk_norm = QkNorm::head;
    layer.feed_forward.kind = kind.value;
    all.push_back(declaration_of(model));
  }
  return all;
}

void add_saved(const Declaration& declaration, SavedNames& names) {
  for (const SavedDeclaration& saved : declaration.saved()) {
    if (!saved.is_activation_of_layer()) continue;
    add(saved.name, names.all);
    if (saved.is_remakeable) add(saved.name, names.remakeable);
  }
}

/// Returns the range of N for errors.
std::string range_of_layers(const ModelConfig& model) {
  return fmt::format("; N is at most {}", model.layer_count() - 1);
}

LayerNames make_names_of_any_model() {
  LayerNames names;
  for (const Declaration& declaration : declarations_of_any_model()) add_names(declaration, names);
  names.unquantized.emplace_back("attention.core");
  return names;
}

std::string braced(const std::vector<std::string>& words) {
  return words.size() == 1 ? words.front() : fmt::format("{{{}}}", fmt::join(words, ","));
}

}  // namespace

std::string LayerNames::accepted_linears() const {
  return fmt::format(
      "{}, where N is an index, first, last or *, and {{a,b}} lists choices, at most {} in all",
      fmt::join(linears, ", "), kMostChoices);
}

std::string LayerNames::accepted_modules() const {
  return fmt::format("{}; also {}", accepted_linears(), fmt::join(unquantized, ", "));
}

LayerNames layer_names(const Declaration& declaration) {
  LayerNames names;
  add_names(declaration, names);
  add("norm", names.unquantized);  // recipes for all models name it, and some models lack it
  names.unquantized.emplace_back("attention.core");
  return names;
}

const LayerNames& layer_names_of_any_model() {
  static const LayerNames names = make_names_of_any_model();
  return names;
}

const SavedNames& saved_names_of_any_model() {
  static const SavedNames names = [] {
    SavedNames all;
    for (const Declaration& declaration : declarations_of_any_model()) add_saved(declaration, all);
    return all;
  }();
  return names;
}

bool names_one_of(const std::string& pattern, const std::vector<std::string>& names) {
  for (const std::string& plain : without_braces(pattern)) {
    const int index = index_in(plain);
    for (const std::string& name : names) {
      if (layer_pattern_matches(plain, at_layer(name, index), index + 1)) return true;
    }
  }
  return false;
}

std::string layer_pattern(const std::vector<std::string>& names, int count) {
  std::vector<std::string> parts, linears;
  std::map<std::string, std::vector<std::string>> indices_of;  // of "mlp.down"
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.'), end = name.find('.', dot + 1);
    if (dot == std::string::npos || end == std::string::npos) {
      parts.push_back(name);
      continue;
    }
    const std::string linear = name.substr(end + 1);
    if (indices_of[linear].empty()) linears.push_back(linear);
    indices_of[linear].push_back(name.substr(dot + 1, end - dot - 1));
  }
  std::vector<std::string> indices;  // in order of appearance
  std::map<std::string, std::vector<std::string>> linears_of;
  for (const std::string& linear : linears) {
    const std::vector<std::string>& of = indices_of[linear];
    const std::string text = static_cast<int>(of.size()) == count ? "*" : braced(of);
    if (linears_of[text].empty()) indices.push_back(text);
    linears_of[text].push_back(linear);
  }
  for (const std::string& text : indices) {
    parts.push_back(fmt::format("layers.{}.{}", text, braced(linears_of[text])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void check_layer_names(const Recipe& recipe, const ModelConfig& model, const std::string& where) {
  if (recipe.overrides.empty() && recipe.keep_high_precision.empty() &&
      recipe.saved_activations.empty()) {
    return;
  }
  const Declaration declaration = declaration_of(model);
  const LayerNames names = layer_names(declaration);
  SavedNames saved;
  add_saved(declaration, saved);
  for (const SavedActivation& row : recipe.saved_activations) {
    const bool changes_nothing = row.name.empty() || (!row.is_recomputed && !row.spec.is_cast());
    if (changes_nothing ||
        std::find(saved.all.begin(), saved.all.end(), row.name) != saved.all.end()) {
      continue;
    }
    throw InputError({.where = fmt::format("{}: recipe {}", where, recipe.name),
                      .key = "saved_activations." + row.name,
                      .reason = "no layer of the model saves it",
                      .accepted = fmt::format("default, {}", fmt::join(saved.all, ", "))});
  }
  for (const RecipeOverride& exception : recipe.overrides) {
    if (names_one_of(exception.match, names.linears, model)) continue;
    throw InputError({.where = fmt::format("{}: recipe {}", where, recipe.name),
                      .key = "override.match",
                      .found = quoted_word(exception.match),
                      .reason = ", which names no linear layer of the model",
                      .accepted = names.accepted_linears() + range_of_layers(model)});
  }
  for (const std::string& pattern : recipe.keep_high_precision) {
    if (names_one_of(pattern, names.linears, model) ||
        names_one_of(pattern, names.unquantized, model)) {
      continue;
    }
    throw InputError({.where = fmt::format("{}: recipe {}", where, recipe.name),
                      .key = "keep_high_precision.modules",
                      .verb = "holds",
                      .found = quoted_word(pattern),
                      .reason = ", which names no module of the model",
                      .accepted = names.accepted_modules() + range_of_layers(model)});
  }
}

}  // namespace fp8lab
