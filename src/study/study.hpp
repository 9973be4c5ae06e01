// A study: one folder per arm under one directory, every arm paired with its baseline.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

struct StudyOptions {
  std::filesystem::path directory;
  int jobs = 1;
  int threads = 0;                     ///< of each arm; 0: processors / jobs
  std::optional<std::int64_t> index;   ///< run this arm only (Slurm arrays, mpirun)
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> say;  ///< one line of progress
};

/// An arm as it will be run.
struct PlannedArm {
  std::string name;
  RunConfig config;
  std::string baseline_arm;  ///< empty for a baseline
  std::vector<Assignment> axes;
};

/// The arms of a study with the shared stages taken out of each, in order.
std::vector<PlannedArm> plan_study(const StudyConfig& study);

struct StudyResult {
  std::int64_t complete = 0, failed = 0, interrupted = 0;
};

/// Runs what is not complete yet, `jobs` at a time, and rewrites study.h5 after it. The shared
/// stages run first, once, in DIRECTORY/shared. An arm that fails does not stop the others.
StudyResult run_study(const StudyConfig& study, const StudyOptions& options);

}  // namespace fp8lab
