// Runs the GEMMs of one training step under other recipes, without training.
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
  LinearRecipe recipe;  ///< recipe in effect, after replace_unknown_histories
  PerSlot<OperandStatistics> operands{};
  /// Errors of the recipe's GEMM results, without bias, against exact products of the unquantized
  /// operands. Their parts are NaN on a backend without exact sums.
  PerGemm<ProductError> errors{};
  /// Slots (history_slot) with delayed scales whose amax history the checkpoint lacks: their
  /// tensors are scaled by their own amax.
  std::vector<Slot> without_history;
  /// True if the checkpoint lacks factors of static smoothing; they are computed from this step.
  bool smoothed_anew = false;
};

struct RecipeReplay {
  Recipe recipe;
  std::vector<LayerReplay> layers;  ///< chosen layers, in the order of Declaration::linears()
};

/// Runs the forward and backward pass of `step` of `run` under the run's own recipe, and the three
/// GEMMs of each layer in `layers` (chosen_layers) under each of `recipes`, on the unquantized
/// operands. Each replay computes what a model of that recipe computes: it uses the recipe's
/// activation type and weight sources, the random bits of the step, and the checkpoint's amax
/// histories and static smoothing factors if they match. The run's own recipe therefore reproduces
/// the statistics that the run logs for the step, bit for bit. A layer is replayed when the
/// backward pass reaches it; `progress` receives its name. Throws Error if the backend computes no
/// statistics, or if a recipe, which the message names, cannot run.
std::vector<RecipeReplay> replay_step(Backend& backend, const CheckpointedRun& run,
                                      const StepBatch& step, const std::vector<Recipe>& recipes,
                                      const std::vector<std::string>& layers,
                                      const std::function<void(const std::string&)>& progress);

}  // namespace fp8lab
