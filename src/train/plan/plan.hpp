// The plan of a run before it starts: numerics, memory and time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Returns the warnings about a stage's recipe, each once with its layers: "layers.*.mlp.down (12
/// layers): ...".
std::vector<std::string> stage_warnings(const RunConfig& config, const StageConfig& stage,
                                        const Recipe& recipe);

/// Returns the text of `train --dry-run`: recipe table, warnings, parameters, memory, and a time
/// estimate from operations timed on `backend`. Calls `phase` with the name of each slow phase.
std::string describe_plan(const RunConfig& config, Backend& backend,
                          const std::function<void(const std::string&)>& phase);

/// Seconds of a whole run, without generation and multiple choice in evaluations (time_plan.hpp).
struct RunTime {
  double start = 0, steps = 0, evaluations = 0, checkpoints = 0;

  double total() const { return start + steps + evaluations + checkpoints; }
};

/// "12 s (start 0.4, steps 10, evaluations 1.2, checkpoints 0.4)".
std::string describe(const RunTime& time);

/// The largest memory needs of a run, and its duration.
struct RunNeeds {
  std::int64_t bytes = 0;       ///< of the backend
  std::int64_t checkpoint = 0;  ///< size of the file, which the host copies and then writes
  bool is_on_host = true;       ///< true if `bytes` are host memory
  RunTime time;
  double longest_step = 0;  ///< seconds
};

/// Returns the numbers of describe_plan. Throws Error as that does.
RunNeeds plan_needs(const RunConfig& config, Backend& backend,
                    const std::function<void(const std::string&)>& phase);

/// Bytes of several runs that train at the same time on one machine.
struct MemoryTogether {
  std::int64_t host = 0;    ///< of steps
  std::int64_t copies = 0;  ///< of checkpoints on the host, limited by checkpoint_memory
  std::int64_t device = 0;  ///< of steps on devices
};

/// Returns the sums over the `count` runs that need most on the host, and most on devices.
MemoryTogether memory_together(std::vector<RunNeeds> runs, std::size_t count);

}  // namespace fp8lab
