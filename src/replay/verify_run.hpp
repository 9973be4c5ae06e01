// Steps of somebody's run, executed again and compared with its file.
#pragma once

#include <cstdint>
#include <optional>

#include "src/replay/recorded_run.hpp"
#include "src/replay/step_difference.hpp"

namespace fp8lab {

/// As many steps as are verified where nobody asks for more or fewer.
inline constexpr std::int64_t kVerifiedSteps = 100;

struct Verification {
  StartPoint start;
  std::int64_t last = 0;      ///< the last step that was to be executed
  std::int64_t executed = 0;  ///< steps
  std::int64_t compared = 0;  ///< of them, those that the file has
  std::int64_t hashed = 0;    ///< of these, those whose weights it hashed
  StepDifference difference;
  StepRecord expected, actual;  ///< of the difference
};

/// Executes `run` from its checkpoint, if it has one at or before step `from`, else from the
/// beginning, up to step `from` + `steps`, or up to the first difference. Without `from`: from the
/// checkpoint or the beginning. `source` is what to execute. Throws Error when the file has no step
/// to compare there.
Verification verify_run(const RecordedRun& run, const ReplaySource& source,
                        std::optional<std::int64_t> from, std::optional<std::int64_t> steps,
                        const Execution::Say& say = {});

}  // namespace fp8lab
