// Weights of a model whose low-rank adapters are new.
#pragma once

#include <cstdint>
#include <memory>

#include "src/model/weights/model_tensors.hpp"

namespace fp8lab {

/// `model` without its adapters.
ModelConfig without_adapters(ModelConfig model);

/// The tensors of `model`, whose adapters have their initial weights by `seed`. Precondition:
/// `tensors` are those of without_adapters(model), in the order of its declaration.
std::unique_ptr<ModelTensors> with_new_adapters(std::unique_ptr<ModelTensors> tensors,
                                                const ModelConfig& model, std::uint64_t seed);

}  // namespace fp8lab
