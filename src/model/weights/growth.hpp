// Depth growth: the weights of a model from those of one with fewer layers.
#pragma once

#include <memory>

#include "src/config/config.hpp"
#include "src/model/weights/model_tensors.hpp"

namespace fp8lab {

/// `model` with the layers that the weights have before they grow.
ModelConfig model_before(const GrowthConfig& growth, const ModelConfig& model);

/// The tensors of `model`, each layer's those of the layer that it copies; embedding, last norm and
/// head as they are. `tensors` are those of model_before() as fit_to_model gives them.
std::unique_ptr<ModelTensors> grown(std::unique_ptr<ModelTensors> tensors,
                                    const GrowthConfig& growth, const ModelConfig& model);

}  // namespace fp8lab
