// The complete state of a run between two optimizer steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "emulation/api/backend.hpp"
#include "src/data/mixture.hpp"
#include "src/model/linear.hpp"
#include "src/model/model_tensors.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {

/// Where a run stands; together with the tensors enough to continue with the same bits.
struct RunPosition {
  std::int64_t step = 0;        ///< optimizer steps done in the whole run
  std::int64_t stage = 0;       ///< stage of the next step
  std::int64_t stage_step = 0;  ///< steps done in that stage
  std::int64_t tokens = 0;
  double seconds = 0;
  std::vector<DataCursor> cursors;  ///< of that stage's data sources, in their order
};

/// What a checkpoint covers. `linears` may be empty (weights of a finished stage only).
struct CheckpointScope {
  Backend& backend;
  Parameters& parameters;
  const TensorView& scalars;
  const std::vector<std::unique_ptr<Linear>>* linears = nullptr;
};

/// Writes weights, moments, delayed-scaling states, step scalars and position, atomically.
void save_checkpoint(const std::filesystem::path& path, const CheckpointScope& scope,
                     const RunPosition& position, const std::string& config_hash);

/// Reads the position only. Throws Error when the checkpoint was written under another
/// configuration.
RunPosition read_position(const std::filesystem::path& path, const std::string& config_hash);

/// Restores everything that save_checkpoint wrote. Throws Error when a tensor is missing or has
/// another shape.
void load_checkpoint(const std::filesystem::path& path, const CheckpointScope& scope);

/// Restores what the quantizers of `linears` remember: states of delayed scaling, and factors of
/// smoothing where the checkpoint has them; the first pass takes others anew. Throws Error naming
/// the state that a checkpoint under another recipe lacks.
void load_quantizer_states(const std::filesystem::path& path, Backend& backend,
                           const std::vector<std::unique_ptr<Linear>>& linears);

/// True for a file that save_checkpoint wrote. Throws Error for one that is no safetensors file.
bool is_checkpoint(const std::filesystem::path& path);

/// The model whose state a checkpoint is. Throws Error for one of a version that does not say.
ModelConfig read_checkpoint_model(const std::filesystem::path& path);

/// The master weights of a checkpoint of `model`. Throws Error naming the tensor that does not fit.
std::unique_ptr<ModelTensors> open_checkpoint_tensors(const std::filesystem::path& path,
                                                      const ModelConfig& model);

/// Sets the weights alone, to start a run: from a checkpoint, a Hugging Face folder, or a
/// safetensors file with Hugging Face names. Throws Error naming the file and the tensor that does
/// not fit.
void load_weights(const std::filesystem::path& path, Parameters& parameters);

}  // namespace fp8lab
