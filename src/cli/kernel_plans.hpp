// The CUDA kernels that a run chooses, printed without a GPU.
#pragma once

#include <string>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// Returns the text of `train --dry-run --kernels`: for a step of each stage and recipe, every
/// quantization and every composite with the kernels that a CudaBackend runs for it
/// (kernels/plan). The operations are recorded against `backend`, which may be any.
std::string describe_kernels(const RunConfig& config, const Backend& backend);

}  // namespace fp8lab::cli
