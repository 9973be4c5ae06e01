// The complete state of a run between two optimizer steps: what it is, and reading it back.
// checkpoint_writer.hpp writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/data/mixture.hpp"
#include "src/model/linear.hpp"
#include "src/model/model_tensors.hpp"
#include "src/model/parameters.hpp"
#include "src/train/checkpoint/checkpoint_file.hpp"
#include "src/train/step/amax_history.hpp"
#include "src/train/step/fallback.hpp"

namespace fp8lab {

/// Where a run stands; together with the tensors enough to continue with the same bits.
struct RunPosition {
  std::int64_t step = 0;        ///< optimizer steps done in the whole run
  std::int64_t stage = 0;       ///< stage of the next step
  std::int64_t stage_step = 0;  ///< steps done in that stage
  std::int64_t tokens = 0;
  double seconds = 0;  ///< wall time so far; the run file has it, not the checkpoint
  std::vector<StreamPosition> streams;  ///< of the stages begun so far
  /// The recipe at work, of recipes_of the stage; a change that is due after the last step may be
  /// made already or not.
  std::int64_t recipe = 0;
  FallbackState fallback;  ///< of the stage
};

/// What a checkpoint covers: weights, moments, step scalars, what the quantizers of `linears`
/// remember, and whose ids the weights know.
struct CheckpointScope {
  Backend& backend;
  Parameters& parameters;
  const TensorView& scalars;
  const std::vector<std::unique_ptr<Linear>>& linears;
  std::string tokenizer = {};  ///< of the weights (start_vocabulary.hpp); empty: not known
};

/// Calls visit(name, tensor) for everything in `scope`: two runs in which all of it is the same, at
/// the same position, go on alike.
void for_each_state(const CheckpointScope& scope,
                    const std::function<void(const std::string&, const TensorView&)>& visit);

/// A checkpoint whose header has its checksum.
struct CheckpointSummary {
  RunPosition position;
  std::string identity;
  std::uint64_t hash = 0;  ///< as CheckpointWriter::end returned it
};

/// The position in the metadata of a checkpoint called `origin`. Throws Error naming the field that
/// is missing, no number from 0 on, or too long.
RunPosition parse_position(const std::map<std::string, std::string>& metadata,
                           const std::string& origin);
/// The steps behind each amax history, by its name.
std::map<std::string, std::int64_t> parse_history_steps(
    const std::map<std::string, std::string>& metadata, const std::string& origin);

/// Reads what is not in the tensors. Throws Error naming the field that is damaged.
CheckpointSummary read_checkpoint(const CheckpointFile& file);
CheckpointSummary read_checkpoint(const std::filesystem::path& path);

/// Throws Error naming the field of `position` that no run of `config` can have.
void check_position(const RunPosition& position, const RunConfig& config, const std::string& where);

/// Restores everything that CheckpointWriter wrote. Throws Error when a tensor is missing, has
/// another shape, or bytes that do not have their checksum.
void load_checkpoint(const CheckpointFile& file, const CheckpointScope& scope);

/// The amax histories in a checkpoint. Throws Error as load_checkpoint does.
AmaxHistories read_amax_histories(const CheckpointFile& file);

/// Restores what the quantizers of `linears` remember: states of delayed scaling, and factors of
/// smoothing where the checkpoint has them; the first pass takes others anew. Throws Error naming
/// the state that a checkpoint under another recipe lacks.
void load_quantizer_states(const CheckpointFile& file, Backend& backend,
                           const std::vector<std::unique_ptr<Linear>>& linears);

/// Checks every byte of a checkpoint. Throws Error naming what is damaged.
void verify_checkpoint(const std::filesystem::path& path);

/// The model whose state a checkpoint is. Throws Error for one of a version that does not say.
ModelConfig read_checkpoint_model(const CheckpointFile& file);

/// The master weights of a checkpoint of `model`, checked. Throws Error naming the tensor that does
/// not fit or does not have its checksum.
std::unique_ptr<ModelTensors> open_checkpoint_tensors(OpenCheckpoint file,
                                                      const ModelConfig& model);

/// What a run starts from.
struct InitialState {
  std::unique_ptr<ModelTensors> weights;
  /// None where the weights are no checkpoint's, and none where they grow: layers of a grown model
  /// have no history of their own.
  AmaxHistories histories;
};

/// What a checkpoint, a Hugging Face folder, or a safetensors file with Hugging Face names holds of
/// `model`; with `growth` what grows out of a shallower model's. Throws Error naming the file and
/// the tensor that does not fit.
InitialState open_initial_state(const std::filesystem::path& path, const ModelConfig& model,
                                const std::optional<GrowthConfig>& growth = {});

}  // namespace fp8lab
