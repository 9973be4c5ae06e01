// Reads a run file: complete, running, or left by a killed writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/io/run_log.hpp"

namespace fp8lab {

/// A run file without the (time x tensor) statistics and the samples.
struct RunData {
  RunMeta meta;
  std::vector<TensorName> tensors;
  std::vector<StepRecord> metrics;
  std::vector<EvalRecord> eval;
  std::vector<ScoreRecord> scores;
  std::vector<DocumentRecord> documents;  ///< none in files of before
  std::vector<WarningRecord> warnings;
  std::vector<EventRecord> events;
  std::vector<std::int64_t> tensor_steps;  ///< logged steps: rows of every statistic
  bool complete = false;
  std::uint64_t final_weight_hash = 0;  ///< of a complete run
};

/// Throws Error when `path` is not a run file.
RunData read_run(const std::filesystem::path& path);

/// One member of OperandStatistics by name, for example "sqnr_db": row-major, one row per entry of
/// RunData::tensor_steps, one column per tensor times the member's width (8 for top_channel and
/// top_channel_amax, 64 for exponent_histogram). Throws Error for an unknown name.
std::vector<double> read_statistic(const std::filesystem::path& path, const std::string& name);

/// /tensors/without_history: one row per entry of RunData::tensor_steps, one column per tensor.
/// Empty for a file that has none.
std::vector<std::uint8_t> read_without_history(const std::filesystem::path& path);

/// A captured tensor.
struct Sample {
  std::int64_t step = 0;
  std::string name;
  std::vector<float> values;
};
std::vector<Sample> read_samples(const std::filesystem::path& path);

}  // namespace fp8lab
