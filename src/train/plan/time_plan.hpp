// Time estimates of the parts of a run.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "emulation/backend.hpp"
#include "emulation/recording/observed_backend.hpp"
#include "emulation/recording/work_log.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Seconds of all timed steps of one size, as a rule.
inline constexpr double kTimedLong = 0.4;

/// Seconds of one optimizer step.
struct TimePlan {
  std::array<double, kWorkClasses.size()> seconds{};  ///< by WorkClass

  double of(WorkClass work_class) const { return seconds[static_cast<std::size_t>(work_class)]; }
  double total() const;
};

/// "GEMMs 1.2, attention 0.03, ...", without classes of zero seconds.
std::string describe(const TimePlan& plan);

/// Returns the stage at a smaller size: at most three layers (first, middle, last), and no other
/// extent (tokens, widths, vocabulary) above `size`, except to keep whole heads. One micro-batch a
/// step.
RunConfig scaled_run(const RunConfig& config, const StageConfig& stage, std::int64_t size);

/// Records the operations of one whole step of the stage without computing them; `statistics`: of a
/// step that logs operands.
WorkLog record_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend, bool statistics = false);

/// Shows the operations of one step of the stage, with one micro-batch a shard and without
/// statistics, to `observer`. None is computed.
void observe_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  const Backend& backend, OperationObserver& observer);

/// Records the operations of one held-out loss of the stage.
WorkLog record_held_out(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                        const Backend& backend);

/// The operations of a step, with their times over several steps.
struct TimedStep {
  WorkLog mean;   ///< mean seconds of each kind; other load is included, as it is in a run
  WorkLog least;  ///< least seconds of each kind
};

/// Times the operations of a step of one micro-batch a shard on `backend`, in steps of `seconds`
/// together, at least three, after one warm-up step. Weights and tokens are random, with one
/// document a sequence. Frees its memory.
TimedStep time_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    Backend& backend, bool statistics = false, double seconds = kTimedLong);

/// Returns the seconds of the work of `step` at the rates of `timed`: the rate of the same kind,
/// else of the same operation, else of its class.
TimePlan estimate(const WorkLog& step, const WorkLog& timed);

/// Times of a stage under one recipe.
struct StageTime {
  TimePlan step;               ///< of a step without statistics
  double with_statistics = 0;  ///< seconds of a step with statistics; 0 if none has them
  double held_out = 0;         ///< seconds of one held-out loss; 0 without evaluations
  double in_bf16 = 0;  ///< seconds of the held-out loss in BF16 after the stage; 0 if there is none
};

/// Whether steps of growing size are long because of their work. A GPU launches kernels of any
/// small size in the same time, and threads beside other load wait for each other as long.
class SizeGrowth {
 public:
  /// Adds the fastest step of the next size, and the seconds of the whole step by its rates.
  void add(double seconds, double estimated);
  /// Returns true if a size took at least twice as long as the one before, at nearly its rates.
  bool has_settled() const { return settled_; }

 private:
  double seconds_ = 0, estimated_ = 0;
  bool settled_ = false;
};

/// Returns an upper estimate of the seconds that timing the next size takes, which is twice the
/// last one. The last size took `took` seconds and its half `half_took`; the factor is twice their
/// ratio, at most 8. Returns 0 after the first size (half_took = 0): a device may have loaded its
/// code in that time, which says nothing about the next size.
double seconds_of_next_size(double took, double half_took);

/// Estimates the recorded work at the rates of smaller steps. Their size grows until the fastest
/// step takes some tenths of a second or is a micro-batch of the stage itself: beside other load,
/// small steps wait long whatever their size. Generation, multiple choice,
/// and the warm-up of delayed scales are not included. Assumes one document a sequence; attention
/// within shorter documents takes less. The size also stops growing where the next one might exceed
/// `within` seconds of timing: the estimate is then coarse, rather too high than too low, since the
/// fixed cost of an operation weighs more in a smaller step.
StageTime plan_time(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    Backend& backend, double within = std::numeric_limits<double>::infinity());

/// Estimates the seconds from the start of the program to the first step: memory, initial weights,
/// their hash. Measured with a smaller model on `backend`. Does not include reading weights from a
/// file.
double plan_start(const RunConfig& config, Backend& backend);

/// Estimates the host seconds of a checkpoint of `bytes`: copy, hash and write. Assumes a disk as
/// fast as memory.
double plan_checkpoint(std::int64_t bytes);

}  // namespace fp8lab
