// Measures the gradient error of a recipe on one batch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/model/transformer.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/train/step/amax_history.hpp"

namespace fp8lab {

/// Compares the weight gradient g of one linear layer with the baseline's gradient g0.
struct LayerGradient {
  std::size_t linear = 0;  ///< in the order of Declaration::linears()
  double error = 0;        ///< |g - g0| / |g0|, Frobenius norm
  double cosine = 0;       ///< <g, g0> / (|g| |g0|)
  /// SQNR in dB of each operand of the layer; NaN if it is not quantized.
  PerSlot<double> sqnr_db{};
};

struct RecipeGradient {
  double error = 0, cosine = 0;  ///< over all parameters
  std::vector<LayerGradient> layers;
};

/// Called before each recipe with its name, the number of completed recipes and their total.
using GradientProgress =
    std::function<void(const std::string& recipe, std::size_t done, std::size_t total)>;

/// Computes gradients over `batches`, micro-batches of `shape`, under each of `recipes`. The first
/// recipe is the baseline; its errors are 0. Weights are those of `tensors`; `origin` names their
/// source in error messages. Throws Error if a recipe cannot train.
std::vector<RecipeGradient> gradient_errors(Backend& backend, const ModelConfig& model,
                                            const ModelTensors& tensors, const std::string& origin,
                                            const AmaxHistories& histories, const BatchShape& shape,
                                            std::span<const Batch> batches,
                                            const std::vector<Recipe>& recipes, std::uint64_t seed,
                                            const GradientProgress& progress);

}  // namespace fp8lab
