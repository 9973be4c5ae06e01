// Executes steps of a recorded run again and compares them with its file.
#pragma once

#include <cstdint>
#include <optional>

#include "src/replay/recorded_run.hpp"
#include "src/replay/step_difference.hpp"

namespace fp8lab {

/// Default number of steps to verify.
inline constexpr std::int64_t kVerifiedSteps = 100;

struct Verification {
  StartPoint start;
  std::int64_t last = 0;      ///< last step to execute
  std::int64_t executed = 0;  ///< number of executed steps
  std::int64_t compared = 0;  ///< number of executed steps that the file has
  std::int64_t hashed = 0;    ///< number of compared steps with a recorded hash of the weights
  StepDifference difference;
  StepRecord expected, actual;  ///< records of the differing step
};

/// Executes `run` up to step `from` + `steps`, or up to the first difference. Starts from the run's
/// checkpoint if it is at or before step `from`, else from the beginning. Without `from`: starts
/// from the checkpoint or the beginning. `source` is the run to execute. Throws Error if the file
/// has no step to compare in that range.
Verification verify_run(const RecordedRun& run, const ReplaySource& source,
                        std::optional<std::int64_t> from, std::optional<std::int64_t> steps,
                        const Execution::Say& say = {});

}  // namespace fp8lab
