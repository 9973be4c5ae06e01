// Whole training steps on two backends: the same loss and weights after every step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// What a run left behind at every step.
struct StepTrace {
  std::vector<std::uint64_t> weights;  ///< hash of all weights after the step
  std::vector<double> loss;            ///< nats per token before the step
  std::vector<double> grad_norm;
  std::vector<double> statistics;  ///< of every logged operand, in order
};

/// Trains `config` on `backend` in a temporary folder and reads the trace from the run file.
/// `progress` is told every step.
StepTrace trace_steps(const RunConfig& config, Backend& backend,
                      const std::function<void(std::int64_t step, std::int64_t total)>& progress);

/// First difference of two traces.
struct StepDifference {
  std::int64_t step = -1;  ///< -1: none
  std::string what;        ///< "loss", "gradient norm", "weights", "operand statistics", "length"
};
StepDifference compare_traces(const StepTrace& expected, const StepTrace& actual);

/// A trace with the configuration that made it.
struct GoldenSteps {
  std::string preset;
  std::string recipe;
  std::vector<std::string> settings;  ///< KEY=VALUE
  std::string device;                 ///< where it was recorded
  std::string config_hash;
  StepTrace trace;  ///< without statistics
};

/// JSON; hashes in hexadecimal, numbers with all their digits.
std::string to_json(const GoldenSteps& golden);
/// Throws Error naming the file and what is wrong with it.
GoldenSteps read_golden_steps(const std::filesystem::path& file);

}  // namespace fp8lab
