// Reads a run file: complete, running, or left by a killed writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// The contents of a run file without the (time x tensor) statistics and the samples.
struct RunData {
  RunMeta meta;
  std::vector<TensorName> tensors;
  std::vector<StepRecord> metrics;
  std::vector<MetricColumn> objective;  ///< columns of StepRecord::objective, ordered by name
  std::vector<EvalRecord> eval;
  std::vector<ScoreRecord> scores;
  std::vector<DocumentRecord> documents;  ///< none in files of before
  std::vector<WarningRecord> warnings;
  std::vector<EventRecord> events;
  std::vector<std::int64_t> tensor_steps;  ///< logged steps: one row of every statistic each
  bool complete = false;
  std::uint64_t final_weight_hash = 0;  ///< set if the run is complete
};

/// Throws Error if `path` is not a run file.
RunData read_run(const std::filesystem::path& path);

/// Reads one member of OperandStatistics by name, for example "sqnr_db". The result is
/// row-major, with one row per entry of RunData::tensor_steps and one column per tensor times
/// the member's width (8 for top_channel and top_channel_amax, 64 for exponent_histogram).
/// Throws Error for an unknown name.
std::vector<double> read_statistic(const std::filesystem::path& path, const std::string& name);

/// Reads /tensors/without_history: one row per entry of RunData::tensor_steps, one column per
/// tensor. Empty if the file has no such dataset.
std::vector<std::uint8_t> read_without_history(const std::filesystem::path& path);

/// A captured tensor.
struct Sample {
  std::int64_t step = 0;
  std::string name;
  std::vector<float> values;
};
std::vector<Sample> read_samples(const std::filesystem::path& path);

}  // namespace fp8lab
