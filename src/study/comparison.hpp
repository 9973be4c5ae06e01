// How the arms of a study compare with their baselines (recipes.md section 8, loss divergence).
#pragma once

#include <filesystem>
#include <vector>

#include "src/io/run_reader.hpp"
#include "src/study/study.hpp"

namespace fp8lab {

/// Weight of the newest step in the exponential average that smooths training losses.
inline constexpr double kSmoothing = 0.1;
/// A loss this many standard deviations of the last kSpikeWindow steps above their mean is a spike.
inline constexpr double kSpikeDeviations = 5.0;
inline constexpr std::size_t kSpikeWindow = 100;
/// A run whose smoothed final loss is this much above the best of its first third has diverged.
inline constexpr double kDivergedNats = 0.5;

/// Exponential average that starts at the first value.
std::vector<double> smooth(const std::vector<double>& values);

/// Number of steps whose loss jumps out of the preceding window; a window needs 10 steps.
std::int64_t count_spikes(const std::vector<double>& loss);

bool has_diverged(const std::vector<double>& loss);

/// Reads every arm's run file and replaces DIRECTORY/study.h5.
void write_comparison(const StudyConfig& study, const std::vector<PlannedArm>& arms,
                      const std::filesystem::path& directory);

}  // namespace fp8lab
