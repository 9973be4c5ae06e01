#include "src/diagnosis/known_histories.hpp"

#include <fmt/core.h>

#include "src/architecture/parts.hpp"

namespace fp8lab {

std::vector<Slot> replace_unknown_histories(const AmaxHistories& histories,
                                            const std::string& layer, LinearRecipe& recipe) {
  const LinearRecipe original = recipe;
  std::vector<Slot> unknown;
  for (const Slot slot : kSlots) {
    if (original.slot(slot).scale_source != ScaleSource::delayed) continue;
    const Slot owner = history_slot(original, slot);
    if (continues(histories, amax_history_name(layer, owner), original.slot(owner))) continue;
    if (owner == slot) unknown.push_back(slot);
    recipe.slot(slot).scale_source = ScaleSource::current;
  }
  return unknown;
}

Recipe with_known_histories(const Recipe& recipe, const ModelConfig& model,
                            const AmaxHistories& histories, std::vector<std::string>& remarks) {
  Recipe result = recipe;
  result.keep_high_precision.clear();
  result.overrides.clear();
  const Declaration declaration = declaration_of(model);
  std::int64_t count = 0;
  std::string first;
  for (const LinearDeclaration& linear : declaration.linears()) {
    LinearRecipe layer = recipe.for_layer(linear.name, static_cast<int>(model.layer_count()));
    for (const Slot slot : replace_unknown_histories(histories, linear.name, layer)) {
      if (count++ == 0) first = amax_history_name(linear.name, slot);
    }
    result.overrides.push_back({linear.name, layer});
  }
  if (count > 0) remarks.push_back(history_remark(recipe.name, count, first));
  return result;
}

std::string history_remark(const std::string& recipe, std::int64_t tensors,
                           const std::string& first) {
  return fmt::format(
      "recipe {}: {} tensors have no amax history in this checkpoint that fits, and are scaled by "
      "their own amax instead; the first is {}",
      recipe, tensors, first);
}

}  // namespace fp8lab
