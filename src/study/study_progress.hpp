// Progress of a study and an estimate of the remaining time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/study/process.hpp"

namespace fp8lab {

/// Estimates the remaining time as tokens times seconds per token. The rate of a recipe is that of
/// its completed runs, including evaluations. Until one has completed, the run's own rate is used,
/// and the overall rate for a recipe that has not started.
class StudyProgress {
 public:
  /// The unfinished runs: `shared` are trained before `arms`, each `jobs` at a time. A line is
  /// passed to `say` every two seconds.
  StudyProgress(const std::vector<const RunConfig*>& shared,
                const std::vector<const RunConfig*>& arms, int jobs,
                std::function<void(const std::string&)> say);

  void finished(const ChildResult& child);
  void watch(const std::vector<RunningChild>& children);

  /// "ARM step 3/60 cpt loss 5.1210; 2 of 12 runs done, about 95 s left".
  std::string line(const std::vector<RunningChild>& children);

 private:
  using Clock = std::chrono::steady_clock;

  struct Run {
    const RunConfig* config = nullptr;
    bool is_shared = false;
    bool is_done = false;
    std::int64_t first = 1;  ///< first step of its process
  };
  struct Rate {
    double tokens = 0, seconds = 0;
  };

  /// Returns the time per token under the recipe of the run; negative: not known yet.
  double seconds_of_token(const RunConfig& config) const;
  double seconds_left(const std::vector<RunningChild>& children) const;

  std::map<std::string, Run> runs_;
  std::map<std::string, Rate> rates_;    ///< by recipe, from completed runs
  std::map<std::string, Rate> running_;  ///< by name, from running runs
  std::size_t jobs_;
  std::size_t done_ = 0;
  std::function<void(const std::string&)> say_;
  Clock::time_point said_ = Clock::now();
};

}  // namespace fp8lab
