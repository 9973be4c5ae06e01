// What a run will do and need, told before it starts.
#pragma once

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

/// What a run needs where it needs most, and how long it takes without evaluations.
struct RunNeeds {
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// The numbers of describe_plan. Throws Error as that does.
RunNeeds plan_needs(const RunConfig& config, Backend& backend,
                    const std::function<void(const std::string&)>& phase);

}  // namespace fp8lab
