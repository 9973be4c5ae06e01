// The operands of one training step under other recipes, without training.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"
#include "src/diagnosis/product_error.hpp"

namespace fp8lab {

/// One linear layer under one recipe.
struct LayerReplay {
  std::string layer;
  LinearRecipe recipe;  ///< as it was replayed
  PerSlot<OperandStatistics> operands{};
  /// Of the products as the recipe's GEMMs return them, against those of the unquantized operands
  /// in exact arithmetic. A bias is no part of it. Their parts are NaN on a backend without exact
  /// sums.
  PerGemm<ProductError> errors{};
  /// Delayed scales without a history here (history_slot): the tensors are scaled by their own
  /// amax.
  std::vector<Slot> without_history;
  /// Static smoothing whose factors the checkpoint lacks: they are those of this step.
  bool smoothed_anew = false;
};

struct RecipeReplay {
  Recipe recipe;
  std::vector<LayerReplay> layers;  ///< the chosen ones, in the order of Declaration::linears()
};

/// Takes `step` of `run` forward and backward in the run's own recipe, and runs the three GEMMs of
/// the linear layers that `layers` names (chosen_layers) on their unquantized operands under each
/// of `recipes`, as a model of that recipe would: activations in the type that it stores, weights
/// from the source that each slot names, the random bits of the step, and delayed scales and static
/// smoothing of the checkpoint where they fit. So the run's own recipe gives the statistics that
/// the run logs for the step, bit for bit. One layer is replayed after the other, while the
/// backward pass stands at it; `progress` is told its name. Throws Error for a backend without
/// statistics, and naming the recipe for what cannot run in it.
std::vector<RecipeReplay> replay_step(Backend& backend, const CheckpointedRun& run,
                                      const StepBatch& step, const std::vector<Recipe>& recipes,
                                      const std::vector<std::string>& layers,
                                      const std::function<void(const std::string&)>& progress);

}  // namespace fp8lab
