// The steps of a run, one after another: all that makes its bits, and nothing that writes them
// down.
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
#include "src/train/step/run_memory.hpp"
#include "src/train/step/update_errors.hpp"

namespace fp8lab {

/// The training data of a stage as its steps read them, from the beginning.
Mixture training_stream(const DataSources& data, const RunConfig& config, const StageConfig& stage);

/// The state of a step between its backward pass and the update of the weights.
struct StepUnderway {
  const StepRecord& record;  ///< without weight hash and seconds
  bool is_last_of_stage = false;
  /// Executes forward and backward pass again, and measures every operand in every micro-batch.
  /// Changes nothing but the records of measurements. Precondition: there is one rank.
  std::function<void()> again;
};
/// Is called in every step that trains on a token.
using InspectStep = std::function<void(const StepUnderway&)>;

/// Results of a step, to be recorded or compared.
struct StepTaken {
  StepRecord record;  ///< `seconds` is the caller's
  std::int64_t trained_tokens = 0;
  std::vector<OperandStatistics> statistics;  ///< of each slot of each layer, where they are due
  std::vector<std::uint8_t> without_history;  ///< with them: delayed scales that knew no amax yet
  std::optional<UpdateErrors> update_errors;  ///< where they are due
  std::vector<EventRecord> events;            ///< its stresses
  std::optional<EventRecord> fallback;        ///< why the stage goes on with its fallback's recipe
};

class Execution {
 public:
  using Say = std::function<void(const std::string& phase)>;

  /// Prepares a run before its first step. Initial weights come from `init_from`, else from
  /// config.init_from, else they are random. `say` is called with the name of a phase that may take
  /// long, and with "" when it ends. If `goes_on`, go_on_from() must follow: no initial weights are
  /// read, and identity() lacks them. Every one of `ranks` executes the same run. Their number
  /// divides the shards, and they outlive this object. Operands are measured on the first rank.
  Execution(const RunConfig& config, Backend& backend, const std::filesystem::path& init_from,
            Say say, bool goes_on = false, Ranks& ranks = one_rank());

  /// Goes on from `checkpoint`, which is at `position`. Before the first stage is begun.
  void go_on_from(OpenCheckpoint checkpoint, const RunPosition& position);

  /// True after the last stage.
  bool is_complete() const {
    return position_.stage == static_cast<std::int64_t>(config_.stages.size());
  }
  /// Makes the model of the stage that position() is in. Returns what happened to it.
  std::vector<EventRecord> begin_stage();
  bool is_stage_done() const { return position_.stage_step == stage().steps; }
  bool is_last_step_done() const { return position_.step == total_steps(); }
  /// True where the next step of the stage runs under another recipe than the one at work.
  bool is_recipe_due() const;
  /// Makes the model of that recipe: transformer() is another one. Weights, moments, data and
  /// rates go on, amax histories where they fit. Returns what happened. Before the step.
  std::vector<EventRecord> change_recipe();
  /// Takes the next step of the stage, whose recipe is at work; the weights are hashed where the
  /// configuration says so. `inspect` makes no bit another.
  StepTaken step(const InspectStep& inspect = {});
  void end_stage();
  /// Takes the memory for checkpoints of the stage at work.
  void prepare_checkpoints(CheckpointWriter& writer);
  /// Begins a checkpoint of the stage at work, `seconds` after the start of the run, and returns as
  /// soon as the next step may be taken.
  void begin_checkpoint(CheckpointWriter& writer, double seconds);
  /// Writes one and waits for it.
  void save(const std::filesystem::path& checkpoint, double seconds);

  const RunPosition& position() const { return position_; }
  const StageConfig& stage() const {
    return config_.stages[static_cast<std::size_t>(position_.stage)];
  }
  Transformer& transformer() { return *transformer_; }  ///< of the stage at work
  Backend& backend() { return backend_; }               ///< that its operations run on
  const Parameters& parameters() const { return memory_->parameters; }
  /// Nothing where no early warning looks at logged steps.
  const std::optional<SwigluAlignment>& alignment() const { return memory_->alignment; }
  /// What a checkpoint of the stage at work covers.
  CheckpointScope scope();

  const Identity& identity() const { return identity_; }
  /// Of the weights, or of the data that they are trained on; empty: neither says (Vocabulary).
  const std::string& tokenizer() const { return tokenizer_; }
  /// What a user should know about data and start, a line each.
  const std::vector<std::string>& notes() const { return notes_; }
  const Recipe& recipe() const { return recipe_; }
  /// Opened for the length of the run.
  const std::vector<OpenedStage>& stages() const { return stages_; }
  std::int64_t total_steps() const;

 private:
  /// Of a run that starts from `start`.
  void open_data(const std::filesystem::path& start);
  /// Memory of the largest stage, in one piece.
  void reserve_memory();
  void load_initial_weights(const std::filesystem::path& init_from);
  /// Of what has been read.
  void identify(bool goes_on);
  /// Where the data of the stage begin: where the last stage of its kind that read the same ones
  /// stopped, unless it restarts them.
  StreamPosition first_position() const;
  void continue_amax_histories(std::vector<EventRecord>& events);
  /// The model of the stage under the recipe at work.
  void make_model();
  const Recipe& recipe_at_work() const;
  /// What a step shows of criteria to fall back.
  StepSigns signs_of(const StepRecord& record, const StepTaken& taken) const;
  /// Decides whether the stage falls back after the step.
  void fall_back(StepTaken& taken);
  /// Bytes of host memory that the run takes beside those that it has.
  std::int64_t host_memory_to_come() const;
  /// True where the stage may fall back after the step at work.
  bool may_fall_back(std::int64_t trained_tokens) const;
  void say(const std::string& phase) const;
  /// The record of the step at work, which `results` are of.
  StepRecord record_of(const StepResults& results, std::int64_t trained_tokens) const;
  /// What the objective of the stage logs of a step, in the order of metrics_of().
  std::vector<double> metrics_of_step(std::span<const Batch> batches) const;

  RunConfig config_;
  std::unique_ptr<Backend> own_backend_;  ///< where the run replaces sources of error
  Backend& backend_;
  Ranks& ranks_;
  Say say_;
  Recipe recipe_;
  std::vector<OpenedStage> stages_;
  std::vector<Mixture> streams_;  ///< their training data, as the steps read them
  std::string tokenizer_;
  std::vector<std::string> notes_;
  std::int64_t most_memory_ = 0;  ///< of the largest stage, in backend memory
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<Objective> objective_;  ///< of the stage at work
  std::unique_ptr<Transformer> transformer_;
  std::size_t mark_ = 0;       ///< of the backend's memory, before the stage's
  OpenCheckpoint checkpoint_;  ///< that the next stage goes on from; or null
  RunPosition position_;
  AmaxHistories histories_;  ///< of the stage before the present one, or of the initial checkpoint
  Identity identity_;
};

}  // namespace fp8lab
