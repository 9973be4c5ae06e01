// Where a recipe's loss arises: each layer, and each operand of its forward product, alone in it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/assessment/document_losses.hpp"

namespace fp8lab {

/// One linear layer alone in the recipe, everything else in the baseline's numerics.
struct LayerSensitivity {
  std::size_t linear = 0;  ///< in the order of Declaration::linears()
  DocumentLosses layer;    ///< the layer as the recipe has it, its accumulator included
  /// One operand alone: quantized as the recipe says, read back, rounded once to BF16, which holds
  /// every product of a code and a power-of-two scale exactly (another scale: relative error of at
  /// most 2^-9), and multiplied by the baseline's product. Nothing where the operand is not
  /// quantized, or not by itself (smoothing).
  std::optional<DocumentLosses> x, w;
};

/// How many times the baseline is taken with a layer moved by next to nothing.
inline constexpr std::size_t kReplicates = 16;

struct SensitivityMap {
  DocumentLosses baseline, recipe;
  /// The noise of the map. Each is the baseline with one layer changed by next to nothing: every
  /// weight of the layer's first output moved by one unit in the last place of BF16. There is one
  /// for each of kReplicates layers spread over the model, or for all if there are fewer. A change
  /// in one layer makes later roundings fall differently, which alone moves the loss.
  std::vector<DocumentLosses> replicates;
  std::vector<LayerSensitivity> layers;  ///< those that the recipe quantizes

  /// Mean loss of the baseline and its replicates: what layers are compared with.
  double baseline_loss() const;
};

/// Number of forward passes over the data that map_sensitivity needs for this recipe.
std::size_t map_passes(const AssessedModel& model, const Recipe& recipe);

/// `baseline` multiplies x and w as they are stored (bf16). `progress` is told each layer, its
/// number and how many there are. Delayed scales count as current ones.
SensitivityMap map_sensitivity(AssessedModel& model, const Recipe& baseline, const Recipe& recipe,
                               const DataSources& data, std::int64_t sequences,
                               const std::function<void(const std::string& layer, std::size_t done,
                                                        std::size_t total)>& progress);

}  // namespace fp8lab
