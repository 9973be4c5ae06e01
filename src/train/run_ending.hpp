// The outcome of a complete run in words: held-out losses, divergence, warnings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/io/hdf5/run_reader.hpp"

namespace fp8lab {

/// Margin of the final loss above its minimum in nats, and the largest margin that noise may give.
inline constexpr double kDivergenceMargin = 0.5, kLargestDivergenceMargin = 4.0;
/// Fewest training losses for a measure of noise; the margin with fewer.
inline constexpr std::size_t kDivergenceRows = 12;
inline constexpr double kShortDivergenceMargin = 10.0;

/// Returns the row at which a curve of training losses diverges, if it does: the first one that is
/// not finite, or the first one from which the smoothed loss stays above its limit (rules 1 and 2
/// of "When a run has diverged" in src/train/README.md). Mirrors
/// fp8lab_analysis.judge.stats.divergence_row.
std::optional<std::size_t> divergence_row(const std::vector<double>& losses);

/// The outcome that a run file records.
struct RunEnding {
  /// As defined in src/train/README.md, "When a run has diverged".
  bool diverged = false;
  std::size_t stage = 0;  ///< index of the first stage that diverged, if one did
  /// One fact a line: held-out losses of each stage, divergence and its rule, events.
  std::vector<std::string> lines;
};

RunEnding describe_ending(const RunData& run);

}  // namespace fp8lab
