// The steps of a run in order: everything that determines its bits. Writes no files but
// checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/model/transformer.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/checkpoint/checkpoint_writer.hpp"
#include "src/train/run_check.hpp"
#include "src/train/step/amax_history.hpp"
#include "src/train/step/fallback.hpp"
#include "src/train/step/muon_overflow.hpp"
#include "src/train/step/run_memory.hpp"
#include "src/train/step/update_errors.hpp"

namespace fp8lab {

/// Returns the training data of a stage in the order of its steps, from the first one.
Mixture training_stream(const DataSources& data, const RunConfig& config, const StageConfig& stage);

/// State of a step between backward pass and weight update.
struct StepUnderway {
  const StepRecord& record;  ///< without weight hash and seconds
  bool is_last_of_stage = false;
  /// Repeats forward and backward pass and measures every operand in every micro-batch. Changes
  /// only the measurements. Precondition: there is one rank.
  std::function<void()> again;
};
/// Called between backward pass and update of every step with a trained token.
using InspectStep = std::function<void(const StepUnderway&)>;

/// Results of a step, to be recorded or compared.
struct StepTaken {
  StepRecord record;  ///< `seconds` is set by the caller
  std::int64_t trained_tokens = 0;
  std::vector<OperandStatistics>
      statistics;  ///< of each slot of each layer; empty in steps that log none
  std::vector<std::uint8_t>
      without_history;  ///< as `statistics`: 1 for a delayed scale without history
  std::optional<UpdateErrors> update_errors;  ///< in steps that measure them
  std::vector<EventRecord> events;            ///< of stress tests, and overflow of muon's norms
  std::optional<EventRecord> fallback;        ///< why the stage switches to its fallback recipe
};

class Execution {
 public:
  using Say = std::function<void(const std::string& phase)>;

  /// Prepares a run before its first step. Initial weights come from `init_from`, else from
  /// config.init_from; else they are random. `say` is called with the name of each phase that may
  /// take long, and with "" at its end. If `goes_on`, the caller must call go_on_from() next: no
  /// initial weights are read, and identity() does not contain them. All `ranks` execute the same
  /// run; their number divides the number of shards, and they must outlive this object. Operands
  /// are measured on the first rank.
  Execution(const RunConfig& config, Backend& backend, const std::filesystem::path& init_from,
            Say say, bool goes_on = false, Ranks& ranks = one_rank());

  /// Restores `checkpoint`, whose position is `position`. Call it before begin_stage().
  void go_on_from(OpenCheckpoint checkpoint, const RunPosition& position);

  /// Returns true after the last stage.
  bool is_complete() const {
    return position_.stage == static_cast<std::int64_t>(config_.stages.size());
  }
  /// Builds the model of the stage at position(). Returns the events of the transition.
  std::vector<EventRecord> begin_stage();
  bool is_stage_done() const { return position_.stage_step == stage().steps; }
  bool is_last_step_done() const { return position_.step == total_steps(); }
  /// Returns true if the next step uses another recipe than the present model.
  bool is_recipe_due() const;
  /// Rebuilds the model under the recipe of the next step, which replaces transformer(). Keeps
  /// weights, moments, data and rates, and the amax histories that fit. Returns the events. Call it
  /// before the step.
  std::vector<EventRecord> change_recipe();
  /// Runs the next step of the stage under the present recipe. Hashes the weights at the steps that
  /// the configuration names. `inspect` must not change any tensor.
  StepTaken step(const InspectStep& inspect = {});
  void end_stage();
  /// Allocates host memory for checkpoints of the present stage.
  void prepare_checkpoints(CheckpointWriter& writer);
  /// Starts a checkpoint, `seconds` after the start of the run. Returns as soon as the next step
  /// may run.
  void begin_checkpoint(CheckpointWriter& writer, double seconds);
  /// Writes a checkpoint and waits until it is on the disk.
  void save(const std::filesystem::path& checkpoint, double seconds);

  const RunPosition& position() const { return position_; }
  const StageConfig& stage() const {
    return config_.stages[static_cast<std::size_t>(position_.stage)];
  }
  Transformer& transformer() { return *transformer_; }  ///< of the present stage
  Backend& backend() { return backend_; }               ///< runs all operations of the run
  const Parameters& parameters() const { return memory_->parameters; }
  /// Null unless early warnings are enabled and operands are logged.
  const std::optional<SwigluAlignment>& alignment() const { return memory_->alignment; }
  /// The activations whose statistics the run logs behind those of the linear layers: all, if one
  /// of its recipes says how they are saved; then the operands of attention, if one quantizes some.
  const std::vector<LoggedActivation>& logged_activations() const { return logged_activations_; }
  /// "layers.0.mlp.down fprop.x", or "layers.0 mlp.inner", of a row of /tensors.
  std::string operand_name(std::size_t row) const;
  /// Everything that a checkpoint of the present stage contains.
  CheckpointScope scope();

  const Identity& identity() const { return identity_; }
  /// Tokenizer of the weights, else of the training data; empty if neither names one (Vocabulary).
  const std::string& tokenizer() const { return tokenizer_; }
  /// Returns remarks for the user on data and initial weights, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  const Recipe& recipe() const { return recipe_; }
  /// Data and initial weights, open during the whole run.
  const std::vector<OpenedStage>& stages() const { return stages_; }
  std::int64_t total_steps() const;

 private:
  /// Returns the identity of a run that starts from `start`.
  void open_data(const std::filesystem::path& start);
  /// Reserves the backend memory of the largest stage as one block.
  void reserve_memory();
  void load_initial_weights(const std::filesystem::path& init_from);
  /// Sets the identity from the files that were opened.
  void identify(bool goes_on);
  /// Returns the position at which the data of the stage begin: where the last stage of its kind
  /// with the same data stopped, unless the stage restarts them.
  StreamPosition first_position() const;
  void continue_amax_histories(std::vector<EventRecord>& events);
  /// Builds the model of the stage under the present recipe.
  void make_model();
  const Recipe& recipe_at_work() const;
  /// Returns the number of rows of /tensors.
  std::size_t logged_operands() const {
    return transformer_->linears().size() * kSlots.size() + logged_activations_.size();
  }
  /// Adds the activations that the present recipe saves as they are.
  void complete(std::vector<OperandStatistics>& statistics) const;
  /// Returns the values that fallback criteria are compared with.
  StepSigns signs_of(const StepRecord& record, const StepTaken& taken) const;
  /// Tests whether the stage falls back after the step, and records the reason.
  void fall_back(StepTaken& taken);
  /// Returns the bytes of host memory that the run has yet to allocate.
  std::int64_t host_memory_to_come() const;
  /// Returns true if the stage has a fallback that the present step can trigger.
  bool may_fall_back(std::int64_t trained_tokens) const;
  void say(const std::string& phase) const;
  /// Returns the record of the present step from its `results`.
  StepRecord record_of(const StepResults& results, std::int64_t trained_tokens) const;
  /// Returns the objective's metrics of a step, in the order of metrics_of().
  std::vector<double> metrics_of_step(std::span<const Batch> batches) const;

  RunConfig config_;
  std::unique_ptr<Backend> own_backend_;  ///< set if the run replaces sources of error
  Backend& backend_;
  Ranks& ranks_;
  Say say_;
  Recipe recipe_;
  std::vector<OpenedStage> stages_;
  std::vector<LoggedActivation> logged_activations_;
  std::size_t logged_saved_ = 0;  ///< saved activations, in front of the operands of attention
  std::vector<Mixture> streams_;  ///< training data of each stage, in the order of steps
  std::string tokenizer_;
  std::vector<std::string> notes_;
  std::int64_t most_memory_ = 0;  ///< bytes of backend memory of the largest stage
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<Objective> objective_;  ///< of the present stage
  std::unique_ptr<Transformer> transformer_;
  std::size_t mark_ = 0;       ///< allocation mark of the backend before the stage
  OpenCheckpoint checkpoint_;  ///< that the next stage restores; or null
  RunPosition position_;
  AmaxHistories histories_;  ///< of the previous stage, or of the initial checkpoint
  Identity identity_;
  MuonOverflow muon_overflow_;
};

}  // namespace fp8lab
