// What a run will do and need, told before it starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// The warnings of a stage's recipe, each once with the layers it is for, "layers.*.mlp.down (12
/// layers): ...".
std::vector<std::string> stage_warnings(const RunConfig& config, const StageConfig& stage,
                                        const Recipe& recipe);

/// The text of `train --dry-run`: recipe table, warnings, parameters, memory, and a time estimate
/// from operations timed on `backend`; `phase` is told what takes time.
std::string describe_plan(const RunConfig& config, Backend& backend,
                          const std::function<void(const std::string&)>& phase);

/// Seconds of a whole run. What evaluations generate or choose is not in it (time_plan.hpp).
struct RunTime {
  double start = 0, steps = 0, evaluations = 0, checkpoints = 0;

  double total() const { return start + steps + evaluations + checkpoints; }
};

/// "12 s (start 0.4, steps 10, evaluations 1.2, checkpoints 0.4)".
std::string describe(const RunTime& time);

/// What a run needs where it needs most, and how long it takes.
struct RunNeeds {
  std::int64_t bytes = 0;       ///< of the backend
  std::int64_t checkpoint = 0;  ///< of the file, which the host copies and then writes
  bool is_on_host = true;       ///< the backend's memory
  RunTime time;
  double longest_step = 0;  ///< seconds
};

/// The numbers of describe_plan. Throws Error as that does.
RunNeeds plan_needs(const RunConfig& config, Backend& backend,
                    const std::function<void(const std::string&)>& phase);

/// Bytes that runs hold while they are trained side by side on one machine.
struct MemoryTogether {
  std::int64_t host = 0;  ///< of steps
  std::int64_t copies =
      0;  ///< of checkpoints on the host, as far as there is room (checkpoint_memory)
  std::int64_t device = 0;  ///< of steps on devices
};

/// Of the `count` runs that need most on the host, and of those that need most on devices.
MemoryTogether memory_together(std::vector<RunNeeds> runs, std::size_t count);

}  // namespace fp8lab
