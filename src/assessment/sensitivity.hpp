// Maps the loss of a recipe to layers and to the operands of their forward GEMMs.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/assessment/document_losses.hpp"

namespace fp8lab {

/// Losses with the recipe in one linear layer and the baseline in all others.
struct LayerSensitivity {
  std::size_t linear = 0;  ///< in the order of Declaration::linears()
  DocumentLosses layer;    ///< the whole layer in the recipe, including its accumulator
  /// Only one operand in the recipe: quantized, dequantized, rounded once to BF16 and multiplied by
  /// the baseline's GEMM. With power-of-two scales the rounding is exact; with other scales its
  /// relative error is at most 2^-9. None if the operand is not quantized, or is smoothed.
  std::optional<DocumentLosses> x, w;
};

/// Largest number of baseline runs with one layer minimally changed.
inline constexpr std::size_t kReplicates = 16;

struct SensitivityMap {
  DocumentLosses baseline, recipe;
  /// The noise of the map. Each replicate is the baseline with one layer minimally changed: every
  /// weight of the layer's first output moves by one unit in the last place of BF16. This changes
  /// later roundings, and thus the loss. There are kReplicates such layers, spread over the
  /// quantized ones, or all quantized layers if there are fewer.
  std::vector<DocumentLosses> replicates;
  std::vector<LayerSensitivity> layers;  ///< the layers that the recipe quantizes

  /// Returns the mean loss of the baseline and its replicates, with which layers are compared.
  double baseline_loss() const;
};

/// Returns the number of forward passes over the data that map_sensitivity needs for this recipe.
std::size_t map_passes(const AssessedModel& model, const Recipe& recipe);

/// Measures the losses of the map on `sequences` packed sequences of `data`. `progress` receives
/// each layer, the number of completed parts and their total. Single operands with delayed scales
/// use current ones. Precondition: `baseline` multiplies x and w as they are stored (bf16).
SensitivityMap map_sensitivity(AssessedModel& model, const Recipe& baseline, const Recipe& recipe,
                               const DataSources& data, std::int64_t sequences,
                               const std::function<void(const std::string& layer, std::size_t done,
                                                        std::size_t total)>& progress);

}  // namespace fp8lab
