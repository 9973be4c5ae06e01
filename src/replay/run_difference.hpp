// What two runs differ in, as kinds, and what follows for a comparison of their losses.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// The kinds of differences between two runs. Runs of the same seed, model, data, start and
/// settings are a pair: the gap between their losses is that of their recipes.
struct RunDifference {
  bool recipe = false;  ///< of a stage, its changes, or the sources of error made exact
  /// What differs where no stage's own recipe does: "stages.cpt.fallback.recipe", "exact".
  std::vector<std::string> beside_recipe;
  bool seed = false;                  ///< also implies other initial weights
  bool model = false;                 ///< also implies other initial weights
  bool start = false;                 ///< initial weights or histories, of the same model and seed
  bool data = false;                  ///< training data
  bool evaluation = false;            ///< held-out data, questions and evaluation settings
  bool machine = false;               ///< build, device or settings that change no bit
  std::vector<std::string> settings;  ///< other keys that change bits

  /// Returns true if the runs differ in their recipes alone, and perhaps in the evaluation.
  bool is_pair() const;
  /// Returns the names of the kinds that change bits: "recipe" or the keys beside it, "seed", ...;
  /// empty for equal runs.
  std::vector<std::string> names() const;
};

/// Sorts the lines of FileComparison::made_of, each "KEY: VALUE -> VALUE".
RunDifference sort_differences(const std::vector<std::string>& made_of);

/// Returns one line: what runs A and B differ in, and what follows from that.
std::string explain(const RunDifference& difference);

}  // namespace fp8lab
