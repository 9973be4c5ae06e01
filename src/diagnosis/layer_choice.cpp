#include "src/diagnosis/layer_choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/reading/nearest_name.hpp"

namespace fp8lab {

std::vector<std::size_t> chosen_layers(const ModelConfig& model,
                                       const std::vector<std::string>& patterns) {
  const Declaration declaration = declaration_of(model);
  const std::vector<LinearDeclaration>& linears = declaration.linears();
  const auto count = static_cast<int>(model.layer_count());
  std::vector<bool> is_chosen(linears.size());
  for (std::size_t i = 0; patterns.empty() && i < linears.size(); ++i) {
    is_chosen[i] = linears[i].name != "lm_head";
  }
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      if (!layer_pattern_matches(pattern, linears[i].name, count)) continue;
      found = is_chosen[i] = true;
    }
    if (found) continue;
    std::vector<std::string> names;
    for (const LinearDeclaration& linear : linears) names.push_back(linear.name);
    throw InputError(
        {.where = fmt::format("layer '{}'", pattern),
         .noun = "the model has no such linear layer",
         .nearest = did_you_mean(pattern, names),
         .accepted = fmt::format(
             "patterns of recipes, such as {}, layers.*.mlp.down, layers.{{first,last}}.*, lm_head",
             names.front())});
  }
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    if (is_chosen[i]) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace fp8lab
