// Recipes with delayed scales at a checkpoint that may not have their histories.
#pragma once

#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// The states of delayed scales (history_slot) of `recipe` that `histories` do not continue; the
/// scales become those of the tensors themselves.
std::vector<Slot> replace_unknown_histories(const AmaxHistories& histories,
                                            const std::string& layer, LinearRecipe& recipe);

/// The same for all layers of `model`, each as an override of the result. Adds a sentence to
/// `remarks` if there are any.
Recipe with_known_histories(const Recipe& recipe, const ModelConfig& model,
                            const AmaxHistories& histories, std::vector<std::string>& remarks);

/// That sentence.
std::string history_remark(const std::string& recipe, std::int64_t tensors,
                           const std::string& first);

}  // namespace fp8lab
