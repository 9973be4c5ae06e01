// The complete state of a run between two optimizer steps: its contents, and how to read it.
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
#include "src/model/linear/linear.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/train/checkpoint/checkpoint_file.hpp"
#include "src/train/step/amax_history.hpp"
#include "src/train/step/fallback.hpp"

namespace fp8lab {

/// Position of a run. With the tensors it suffices to continue with the same bits.
struct RunPosition {
  std::int64_t step = 0;        ///< optimizer steps done in the whole run
  std::int64_t stage = 0;       ///< stage of the next step
  std::int64_t stage_step = 0;  ///< steps done in that stage
  std::int64_t tokens = 0;
  double seconds = 0;  ///< wall time so far; stored in the run file, not in the checkpoint
  std::vector<StreamPosition> streams;  ///< of all stages that have begun
  /// The present recipe, one of recipes_of the stage. A change that is due after the last step may
  /// or may not have been made.
  std::int64_t recipe = 0;
  FallbackState fallback;  ///< of the stage
};

/// Contents of a checkpoint: weights, moments, step scalars, the states of the quantizers of
/// `modules`, and the tokenizer of the weights.
struct CheckpointScope {
  Backend& backend;
  Parameters& parameters;
  const TensorView& scalars;
  std::vector<NamedOperands> modules;  ///< Transformer::operand_sets()
  std::string tokenizer = {};          ///< of the weights (start_vocabulary.hpp); empty if unknown
};

/// Calls visit(name, tensor) for every tensor of `scope`. Two runs with equal tensors at the same
/// position continue with equal bits.
void for_each_state(const CheckpointScope& scope,
                    const std::function<void(const std::string&, const TensorView&)>& visit);

/// A checkpoint whose header matches its checksum.
struct CheckpointSummary {
  RunPosition position;
  std::string identity;
  std::uint64_t hash = 0;  ///< as CheckpointWriter::end returned it
};

/// Returns the position in the metadata of a checkpoint called `origin`. Throws Error naming a
/// field that is missing, too long, or not a nonnegative number.
RunPosition parse_position(const std::map<std::string, std::string>& metadata,
                           const std::string& origin);
/// Returns the number of steps in each amax history, by name.
std::map<std::string, std::int64_t> parse_history_steps(
    const std::map<std::string, std::string>& metadata, const std::string& origin);

/// Reads the metadata. Throws Error naming the damaged field.
CheckpointSummary read_checkpoint(const CheckpointFile& file);
CheckpointSummary read_checkpoint(const std::filesystem::path& path);

/// Throws Error naming a field of `position` that is impossible in a run of `config`.
void check_position(const RunPosition& position, const RunConfig& config, const std::string& where);

/// Restores everything that CheckpointWriter wrote. Throws Error if a tensor is missing, has
/// another shape, or does not match its checksum.
void load_checkpoint(const CheckpointFile& file, const CheckpointScope& scope);

/// Returns the amax histories of a checkpoint. Throws Error as load_checkpoint does.
AmaxHistories read_amax_histories(const CheckpointFile& file);

/// Restores the states of the quantizers of `modules`: delayed scaling, and smoothing factors if
/// the checkpoint has them; otherwise the first pass computes them. Throws Error naming a state
/// that the checkpoint of another recipe lacks.
void load_quantizer_states(const CheckpointFile& file, Backend& backend,
                           const std::vector<NamedOperands>& modules);

/// Checks every byte of a checkpoint. Throws Error naming what is damaged.
void verify_checkpoint(const std::filesystem::path& path);

/// Returns the model of a checkpoint. Throws Error for versions that did not store it.
ModelConfig read_checkpoint_model(const CheckpointFile& file);

/// Opens the master weights of a checkpoint of `model`. Throws Error naming a tensor that has
/// another shape or does not match its checksum.
std::unique_ptr<ModelTensors> open_checkpoint_tensors(OpenCheckpoint file,
                                                      const ModelConfig& model);

/// Initial state of a run.
struct InitialState {
  std::unique_ptr<ModelTensors> weights;
  /// Empty for weights that are not from a checkpoint, and for a grown model, whose layers have no
  /// history.
  AmaxHistories histories;
};

/// Opens the weights of `model` in a checkpoint, a Hugging Face folder, or a safetensors file with
/// Hugging Face names; with `growth`, grown from those of a shallower model. Adapters of the model
/// that the start does not have are new: drawn by `seed`. Throws Error naming the file and the
/// tensor that does not fit.
InitialState open_initial_state(const std::filesystem::path& path, const ModelConfig& model,
                                const std::optional<GrowthConfig>& growth = {},
                                std::uint64_t seed = 0);

}  // namespace fp8lab
