// Watches a run while it trains: detectors of what is about to break, and the operand behind a step
// that broke. It changes no bit of the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/config/config.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/step/execution.hpp"
#include "src/train/watch/early_warning.hpp"
#include "src/train/watch/loss_spikes.hpp"
#include "src/train/watch/step_fault.hpp"

namespace fp8lab {

/// Fed with nothing but the rows of the run file and the weights, so that an interrupted run goes
/// on with the same scores. Does nothing where the configuration has no warnings.
///
/// A step whose loss or gradient norm is not finite, is a spike of the loss (LossSpikes) or warns
/// as gradient_norm is executed once more before its weights are updated, with every operand
/// measured, and FaultFinder names one of them. That costs no copy of the weights, and about one
/// logged step for each such event. Spikes are those of rows of /metrics; of steps that follow each
/// other as broken only the first is looked at. It cannot see a cause in an earlier update that no
/// operand of this step shows, and without logging.statistics_every_steps it names nothing.
class RunWatch {
 public:
  /// `backend` is the one that `execution` runs on; all three outlive this.
  RunWatch(const RunConfig& config, ObservedBackend& backend, Execution& execution);

  /// Takes up the rows of a run up to `step`, after which it goes on.
  void go_on(const std::filesystem::path& run_file, std::int64_t step);
  /// After Execution::begin_stage().
  void begin_stage();
  /// After Execution::change_recipe().
  void change_recipe();

  /// For Execution::step(); empty where nothing is to be watched.
  InspectStep inspection();
  /// The fault of a step that is not finite as its event "nan", with a sample. False where none was
  /// found.
  bool record_nonfinite(RunLog& log, const StepRecord& record);
  /// "loss growing since step 3: 5.5 to 41.2 at step 8": since its lowest row in the stage. Empty
  /// where the last finite row is not kDivergenceMargin above that.
  std::string growth() const;
  /// A row of /metrics, after it is appended; `trained` is false where no token was trained on.
  void add_row(const StepRecord& record, bool trained);
  /// After the step and its rows: rows of /warnings, events "early_warning" and "spike".
  void record(RunLog& log, const StepTaken& taken);

  /// The last score of every detector that has had one, at the last logged step or since.
  const std::vector<WarningScore>& scores() const { return warnings_.scores(); }

 private:
  /// What is wrong with a step, and which operand shows it.
  struct Finding {
    std::string what;
    std::optional<StepFault> fault;
  };

  void begin_stage(std::int64_t stage);
  /// The operands under one of the recipes of the stage.
  void begin_recipe(std::int64_t stage, std::size_t recipe);
  void inspect(const StepUnderway& step);
  std::optional<StepFault> find_fault(const StepUnderway& step, FaultKind kind);
  void append_fault(RunLog& log, std::int64_t step, const std::string& kind) const;
  /// A row of /warnings, and the event of the first of a detector in the stage that warns.
  void append(RunLog& log, std::int64_t step, const WarningScore& score);
  bool is_announced(Detector detector) const;
  std::string place_of(const WarningScore& score) const;

  const RunConfig& config_;
  ObservedBackend& backend_;
  Execution& execution_;
  EarlyWarning warnings_;
  LossSpikes losses_;
  StepRecord lowest_, last_;              ///< rows of the stage with a finite loss; step 0: none
  bool was_finite_ = true;                ///< the last step that trained
  std::optional<WarningScore> gradient_;  ///< of the present step
  std::optional<Finding> finding_;        ///< of the present step
  std::vector<Detector> announced_;       ///< in the present stage
};

}  // namespace fp8lab
