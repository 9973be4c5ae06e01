#include "src/interface/module_names.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <utility>

namespace fp8lab::interface {
namespace {

bool is_number(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char character) {
    return std::isdigit(character) != 0;
  });
}

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

/// A name as "STACK.INDEX.REST".
struct InStack {
  std::string stack, index, rest;
};

/// Splits at the first index, which belongs to the outermost stack; nothing without one.
std::optional<InStack> in_stack(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, dot - begin);
    if (is_number(part) && begin > 0 && dot < name.size()) {
      return InStack{name.substr(0, begin - 1), part, name.substr(dot + 1)};
    }
    begin = dot + 1;
  }
  return std::nullopt;
}

/// Words for one part of a layer: the last part of a module's name, "q_proj".
struct PartWords {
  std::string_view part;
  std::vector<std::string_view> words;
};

const std::vector<PartWords>& attention_words() {
  static const std::vector<PartWords> words = {
      {"attention.qkv",
       {"q_proj",
        "k_proj",
        "v_proj",
        "qkv_proj",
        "qkv",
        "query",
        "key",
        "value",
        "c_attn",
        "q",
        "k",
        "v",
        "query_key_value",
        "W_pack",
        "q_a_proj",
        "q_b_proj",
        "kv_a_proj_with_mqa",
        "kv_b_proj",
        "wq",
        "wk",
        "wv",
        "Wqkv"}},
      {"attention.o", {"o_proj", "out_proj", "c_proj", "dense", "o", "proj", "wo"}}};
  return words;
}

const std::vector<PartWords>& feed_forward_words() {
  static const std::vector<PartWords> words = {
      {"mlp.gate_up", {"gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "wi_0", "wi_1"}},
      {"mlp.up", {"c_fc", "fc1", "dense_h_to_4h", "wi"}},
      {"mlp.down", {"down_proj", "w2", "wo", "c_proj", "fc2", "dense_4h_to_h"}}};
  return words;
}

/// Returns the part of a layer that a module is or belongs to, by its name within the layer.
std::optional<std::string> part_of_layer(const std::string& rest) {
  const std::size_t dot = rest.rfind('.');
  const std::string last = rest.substr(dot == std::string::npos ? 0 : dot + 1);
  std::string within = dot == std::string::npos ? "" : rest.substr(0, dot);
  for (char& letter : within) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  // BERT names both blocks' modules "dense".
  if (last == "dense" && contains(within, "intermediate")) return "mlp.up";
  if (last == "dense" && within == "output") return "mlp.down";
  const bool attends = contains(within, "attn") || contains(within, "attention");
  for (const PartWords& entry : attends ? attention_words() : feed_forward_words()) {
    if (std::find(entry.words.begin(), entry.words.end(), last) != entry.words.end()) {
      return std::string(entry.part);
    }
  }
  return std::nullopt;
}

/// Number of layers by the name of their stack.
std::map<std::string, int> stack_sizes(const std::vector<Module>& modules) {
  std::map<std::string, int> sizes;
  for (const Module& module : modules) {
    const std::optional<InStack> place = in_stack(module.name);
    if (!place) continue;
    int& size = sizes[place->stack];
    size = std::max(size, std::stoi(place->index) + 1);
  }
  return sizes;
}

}  // namespace

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names = {module.name};
  if (module.is_head) names.emplace_back("lm_head");
  const std::optional<InStack> place = in_stack(module.name);
  if (!place) return names;
  const std::string layer = "layers." + place->index + ".";
  names.push_back(layer + place->rest);
  if (const std::optional<std::string> part = part_of_layer(place->rest)) {
    names.push_back(layer + *part);
  }
  return names;
}

std::vector<std::optional<std::size_t>> match(const std::vector<std::string>& patterns,
                                              const std::vector<Module>& modules) {
  const std::map<std::string, int> sizes = stack_sizes(modules);
  std::vector<std::optional<std::size_t>> found;
  for (const Module& module : modules) {
    const std::optional<InStack> place = in_stack(module.name);
    const int layers = place ? sizes.at(place->stack) : 1;
    const std::vector<std::string> names = names_of(module);
    const auto first = std::find_if(patterns.begin(), patterns.end(), [&](const auto& pattern) {
      return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return layer_pattern_matches(pattern, name, layers);
      });
    });
    found.emplace_back();
    if (first != patterns.end()) found.back() = static_cast<std::size_t>(first - patterns.begin());
  }
  return found;
}

std::vector<const LinearRecipe*> recipes_of(const Recipe& recipe,
                                            const std::vector<Module>& modules) {
  std::vector<std::string> patterns = recipe.keep_high_precision;
  const std::size_t kept = patterns.size();
  for (const RecipeOverride& exception : recipe.overrides) patterns.push_back(exception.match);
  std::vector<const LinearRecipe*> recipes;
  for (const std::optional<std::size_t>& found : match(patterns, modules)) {
    if (!found) {
      recipes.push_back(&recipe.linear);
    } else {
      recipes.push_back(*found < kept ? nullptr : &recipe.overrides[*found - kept].recipe);
    }
  }
  return recipes;
}

}  // namespace fp8lab::interface
