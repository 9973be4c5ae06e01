// What tells a checkpoint from other safetensors files, and where it says its model.
#pragma once

namespace fp8lab {

constexpr const char* kCheckpointSchema = "fp8lab-checkpoint-3";
/// Field of the metadata: the [model] table as text.
constexpr const char* kCheckpointModel = "model";

}  // namespace fp8lab
