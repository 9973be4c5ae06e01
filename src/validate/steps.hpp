// Training steps recorded on some device, to be replayed on others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/io/run_log.hpp"

namespace fp8lab {

/// What the steps of a run left behind, with the configuration that made it.
struct GoldenSteps {
  std::string preset;
  std::string recipe;
  std::vector<std::string> settings;  ///< KEY=VALUE
  std::string device;                 ///< where it was recorded
  std::string config_hash;
  std::vector<StepRecord> steps;  ///< from 1 on: loss, gradient norm and hash of the weights
};

/// JSON; hashes in hexadecimal, numbers with all their digits.
std::string to_json(const GoldenSteps& golden);
/// Throws Error naming the file and what is wrong with it.
GoldenSteps read_golden_steps(const std::filesystem::path& file);

}  // namespace fp8lab
