// Under which recipes the steps of a stage run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// One of them.
struct StageRecipe {
  std::string name;          ///< name or file
  std::int64_t after = 0;    ///< steps of the stage before its first
  std::int64_t steps = 0;    ///< planned under it; of the fallback none
  bool is_fallback = false;  ///< its first step is not known beforehand
};

/// In the order of the steps, the fallback last. Never empty.
std::vector<StageRecipe> recipes_of(const RunConfig& config, const StageConfig& stage);

/// Which of them step `stage_step` (from 1 on) runs under, `fallen` back or not.
std::size_t recipe_of_step(const StageConfig& stage, std::int64_t stage_step, bool fallen);

/// Names that the stage itself gives; empty where it has none but the run's.
std::vector<std::string> own_recipes(const StageConfig& stage);

/// "nvfp4+nvfp4_bf16_forward@82+bf16@fallback": the names of recipes_of, and after how many steps.
std::string recipes_text(const RunConfig& config, const StageConfig& stage);

}  // namespace fp8lab
