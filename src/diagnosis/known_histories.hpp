// Adapts recipes with delayed scales to a checkpoint that may lack their amax histories.
#pragma once

#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// Replaces delayed scales of `recipe`, the recipe of `layer`, by current ones (from the tensor's
/// own amax) if `histories` has no matching amax history. Returns the affected history slots.
std::vector<Slot> replace_unknown_histories(const AmaxHistories& histories,
                                            const std::string& layer, LinearRecipe& recipe);

/// Returns `recipe` with one override for each linear layer of `model`, after
/// replace_unknown_histories. Adds history_remark to `remarks` if a scale was replaced.
Recipe with_known_histories(const Recipe& recipe, const ModelConfig& model,
                            const AmaxHistories& histories, std::vector<std::string>& remarks);

/// Returns the sentence that `tensors` tensors use their own amax; `first` names one of them.
std::string history_remark(const std::string& recipe, std::int64_t tensors,
                           const std::string& first);

}  // namespace fp8lab
