#include "src/diagnosis/known_histories.hpp"

#include <fmt/core.h>

#include "src/model/decoder.hpp"

namespace fp8lab {

std::vector<Tensor> replace_unknown_histories(const AmaxHistories& histories,
                                              const std::string& layer, LinearRecipe& recipe) {
  std::vector<Tensor> unknown;
  for (const Tensor tensor : kTensors) {
    const QuantSpec& delayed = delayed_spec(recipe, tensor);
    if (delayed.scale_source != ScaleSource::delayed) continue;
    if (continues(histories, amax_history_name(layer, tensor), delayed)) continue;
    unknown.push_back(tensor);
    for (const Slot slot : {first_orientation(tensor), second_orientation(tensor)}) {
      QuantSpec& spec = recipe.slot(slot);
      if (spec.scale_source == ScaleSource::delayed) spec.scale_source = ScaleSource::current;
    }
  }
  return unknown;
}

Recipe with_known_histories(const Recipe& recipe, const CheckpointedRun& run,
                            std::vector<std::string>& remarks) {
  Recipe result = recipe;
  result.keep_high_precision.clear();
  result.overrides.clear();
  const Declaration declaration = declaration_of(run.config.model);
  std::int64_t count = 0;
  std::string first;
  for (const LinearDeclaration& linear : declaration.linears()) {
    LinearRecipe layer =
        recipe.for_layer(linear.name, static_cast<int>(run.config.model.num_hidden_layers));
    for (const Tensor tensor : replace_unknown_histories(run.histories, linear.name, layer)) {
      if (count++ == 0) first = amax_history_name(linear.name, tensor);
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
