// Metadata that identifies a checkpoint among safetensors files and describes its model.
#pragma once

namespace fp8lab {

constexpr const char* kCheckpointSchema = "fp8lab-checkpoint-3";
/// Metadata field with the [model] table as text.
constexpr const char* kCheckpointModel = "model";

}  // namespace fp8lab
