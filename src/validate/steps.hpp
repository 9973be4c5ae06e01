// Training steps recorded on one device, to be replayed on others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// The results of a run's steps, with the configuration of the run.
struct GoldenSteps {
  std::string preset;
  std::string recipe;
  std::vector<std::string> settings;  ///< KEY=VALUE
  std::string device;                 ///< device of the recording
  std::string config_hash;
  std::vector<StepRecord> steps;  ///< loss, gradient norm and hash of the weights, from step 1 on
};

/// Returns JSON; hashes in hexadecimal, numbers with all their digits.
std::string to_json(const GoldenSteps& golden);
/// Reads JSON. Throws Error that names the file and the fault.
GoldenSteps read_golden_steps(const std::filesystem::path& file);

}  // namespace fp8lab
