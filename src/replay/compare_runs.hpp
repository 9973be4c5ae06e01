// Compares two runs: where their files first differ, and which operation causes the difference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/replay/locate.hpp"
#include "src/replay/recorded_run.hpp"
#include "src/replay/step_difference.hpp"

namespace fp8lab {

/// The comparison of two run files, without execution.
struct FileComparison {
  std::vector<std::string> made_of;  ///< configuration, recipes, data, weights, build, device
  bool tells_data = true;            ///< false: another program wrote a file, which names no data
  std::int64_t steps = 0;            ///< number of steps that both files have
  StepDifference first;              ///< first difference in these steps, or in the final weights
  /// The first held-out loss, or share of right answers, that differs after equal steps; none if
  /// the runs evaluate in different ways.
  StepDifference held_out;

  bool differs() const { return first.step >= 0 || held_out.step >= 0; }
};
FileComparison compare_files(const RecordedRun& a, const RecordedRun& b);

/// Returns the latest common start before `step`: a checkpoint beside either run if both runs have
/// the same identity, else the beginning.
StartPoint common_start(const RecordedRun& a, const RecordedRun& b, std::int64_t step);

/// The comparison of a repeated execution with one file.
struct Reproduction {
  std::int64_t steps = 0;     ///< number of executed steps that the file has
  StepDifference difference;  ///< the first difference from the file
};
Reproduction compare_with_file(const RecordedRun& run, const std::vector<StepRecord>& executed);

}  // namespace fp8lab
