// Low-rank adapters as PEFT reads them.
#pragma once

#include <filesystem>

#include "src/io/tensors/safetensors.hpp"
#include "src/model/part_report.hpp"
#include "src/model/weights/model_tensors.hpp"

namespace fp8lab {

/// Writes adapter_config.json and adapter_model.safetensors of the adapters among `tensors` into
/// `folder`, which appears complete or not at all; `base` is what PEFT is told of the model that
/// they are for. Throws Error where the files of the model's family have no module for an output
/// that has an adapter, and as write_model_folder does.
void export_adapters(const ModelTensors& tensors, const ModelConfig& model, StoredType dtype,
                     const std::string& base, const std::filesystem::path& folder,
                     const PartReport& report = {});

}  // namespace fp8lab
