// How far a study is, and how long the rest takes.
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

/// Counts the tokens that runs train on, at the seconds that a token has taken so far: those of the
/// run itself until a run of its recipe has ended, then those, evaluations included; those of all
/// where a recipe has not begun yet.
class StudyProgress {
 public:
  /// What is left: `shared` is trained before `arms`, each `jobs` at once. A line goes to `say`
  /// every two seconds.
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
    std::int64_t first = 1;  ///< step of its process
  };
  struct Rate {
    double tokens = 0, seconds = 0;
  };

  /// Of a token under the recipe of the run; negative: not known yet.
  double seconds_of_token(const RunConfig& config) const;
  double seconds_left(const std::vector<RunningChild>& children) const;

  std::map<std::string, Run> runs_;
  std::map<std::string, Rate> rates_;    ///< by recipe, of runs that ended
  std::map<std::string, Rate> running_;  ///< by name, of runs at work
  std::size_t jobs_;
  std::size_t done_ = 0;
  std::function<void(const std::string&)> say_;
  Clock::time_point said_ = Clock::now();
};

}  // namespace fp8lab
