// How a complete run ended, in words: held-out losses, divergence, warnings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/io/hdf5/run_reader.hpp"

namespace fp8lab {

/// Nats that a loss may end above its best, and what noise may make of that at most.
inline constexpr double kDivergenceMargin = 0.5, kLargestDivergenceMargin = 4.0;
/// Training losses below which they are too few to measure their noise; the margin then.
inline constexpr std::size_t kDivergenceRows = 12;
inline constexpr double kShortDivergenceMargin = 10.0;

/// The row at which a curve of training losses starts to diverge; none for one that does not: with
/// the first that is not finite, or where the smoothed loss leaves for good what its noise and
/// kDivergenceMargin allow, by rules 1 and 2 of "When a run has diverged" of src/train/README.md.
/// The definition of fp8lab_analysis.judge.stats.divergence_row.
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
