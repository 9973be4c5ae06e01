// Watches a run: runs the detectors, and finds the operand that caused a broken step. Does not
// change any bit of training.
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

/// Reads only rows of the run file and the weights, so that an interrupted run resumes with the
/// same scores. Does nothing if the configuration disables warnings.
///
/// A step whose loss or gradient norm is not finite, is a spike of the loss (LossSpikes) or warns
/// as gradient_norm is executed once more before its weights are updated, with every operand
/// measured, and FaultFinder names one of them. That costs no copy of the weights, and about one
/// logged step for each such event. Spikes are those of rows of /metrics; of steps that follow each
/// other as broken only the first is looked at. It cannot see a cause in an earlier update that no
/// operand of this step shows, and without logging.statistics_every_steps it names nothing.
class RunWatch {
 public:
  /// `backend`: that of `execution`. All three must outlive this object. Call while `execution` has
  /// its initial weights, also of a run that resumes: detectors compare with them.
  RunWatch(const RunConfig& config, ObservedBackend& backend, Execution& execution);

  /// Reads the rows of a run up to `step`, from which it resumes.
  void go_on(const std::filesystem::path& run_file, std::int64_t step);
  /// Call after Execution::begin_stage().
  void begin_stage();
  /// Call after Execution::change_recipe().
  void change_recipe();

  /// Returns the function for Execution::step(); empty if warnings are disabled.
  InspectStep inspection();
  /// Completes the event "nan" of a step that is not finite, and records a sample. Returns false if
  /// no fault was found.
  bool record_nonfinite(RunLog& log, const StepRecord& record);
  /// Returns "loss growing since step 3: 5.5 to 41.2 at step 8", from the lowest row of the stage
  /// on; empty unless the last finite row is kDivergenceMargin above it.
  std::string growth() const;
  /// Adds a row of /metrics that was appended; `trained`: false if no token was trained on.
  void add_row(const StepRecord& record, bool trained);
  /// Call after a step and its rows. Writes rows of /warnings, and events "early_warning" and
  /// "spike".
  void record(RunLog& log, const StepTaken& taken);

  /// Returns the latest score of every detector that has one.
  const std::vector<WarningScore>& scores() const { return warnings_.scores(); }

 private:
  /// The fault of a step and the operand that shows it.
  struct Finding {
    std::string what;
    std::optional<StepFault> fault;
  };

  void begin_stage(std::int64_t stage);
  /// Returns the operands under one of the recipes of the stage.
  void begin_recipe(std::int64_t stage, std::size_t recipe);
  void inspect(const StepUnderway& step);
  std::optional<StepFault> find_fault(const StepUnderway& step, FaultKind kind);
  void append_fault(RunLog& log, std::int64_t step, const std::string& kind) const;
  /// Writes a row of /warnings, and an event for the first warning of a detector in the stage.
  void append(RunLog& log, std::int64_t step, const WarningScore& score);
  bool is_announced(Detector detector) const;
  std::string place_of(const WarningScore& score) const;

  const RunConfig& config_;
  ObservedBackend& backend_;
  Execution& execution_;
  EarlyWarning warnings_;
  std::vector<float> start_cosines_;  ///< SwigluAlignment::measure() of the initial weights
  LossSpikes losses_;
  StepRecord lowest_, last_;              ///< rows of the stage with a finite loss; step 0: none
  bool was_finite_ = true;                ///< true if the last step with trained tokens was finite
  std::optional<WarningScore> gradient_;  ///< of the present step
  std::optional<Finding> finding_;        ///< of the present step
  std::vector<Detector> announced_;       ///< detectors that warned in the present stage
};

}  // namespace fp8lab
