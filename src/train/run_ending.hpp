// How a complete run ended, in words: held-out losses, divergence, warnings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/io/run_reader.hpp"

namespace fp8lab {

/// Nats that the smoothed training loss of a stage may end above its best.
inline constexpr double kDivergenceMargin = 0.5;

/// The row at which a curve of losses starts to diverge; none for one that does not. A curve
/// diverges with a loss that is not finite, or when its smoothed loss ends more than
/// kDivergenceMargin above the minimum of the first third of its rows. The definition of
/// fp8lab_analysis.stats.divergence_row: smoothed is an exponential average of a half-life of 2 %
/// of the rows, at least one.
std::optional<std::size_t> divergence_row(const std::vector<double>& losses);

/// What a run file says of the end of its run.
struct RunEnding {
  /// By "When a run has diverged" of src/train/README.md.
  bool diverged = false;
  /// One fact a line: held-out losses of every stage, divergence and its rule, events.
  std::vector<std::string> lines;
};

RunEnding describe_ending(const RunData& run);

}  // namespace fp8lab
