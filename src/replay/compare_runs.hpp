// Two runs: where their files part, and which operation makes them part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/replay/locate.hpp"
#include "src/replay/recorded_run.hpp"
#include "src/replay/step_difference.hpp"

namespace fp8lab {

/// What two run files say, without anything executed.
struct FileComparison {
  std::vector<std::string> made_of;  ///< configuration, recipes, data, weights, build, device
  std::int64_t steps = 0;            ///< that both have
  StepDifference first;              ///< of them, or the final weights
};
FileComparison compare_files(const RecordedRun& a, const RecordedRun& b);

/// The latest common start before `step`: a checkpoint beside either run where both are made of the
/// same, else the beginning.
StartPoint common_start(const RecordedRun& a, const RecordedRun& b, std::int64_t step);

/// What executing again says of one file.
struct Reproduction {
  std::int64_t steps = 0;     ///< of those executed that the file has
  StepDifference difference;  ///< the first where the file holds something else
};
Reproduction compare_with_file(const RecordedRun& run, const std::vector<StepRecord>& executed);

}  // namespace fp8lab
