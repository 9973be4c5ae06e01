// The recipes that the steps of a stage run under.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// One recipe of a stage.
struct StageRecipe {
  std::string name;          ///< name or file
  std::int64_t after = 0;    ///< steps of the stage before its first step
  std::int64_t steps = 0;    ///< planned steps; 0 for the fallback
  bool is_fallback = false;  ///< true for the fallback, whose first step is not known beforehand
};

/// Returns the recipes in the order of the steps, the fallback last. Never empty.
std::vector<StageRecipe> recipes_of(const RunConfig& config, const StageConfig& stage);

/// Returns the index in recipes_of of the recipe of step `stage_step` (from 1);
/// `fallen`: after a fallback.
std::size_t recipe_of_step(const StageConfig& stage, std::int64_t stage_step, bool fallen);

/// Returns the names that the stage itself gives; empty if it uses only the run's recipe.
std::vector<std::string> own_recipes(const StageConfig& stage);

/// Returns "nvfp4+nvfp4_bf16_forward@82+bf16@fallback": the names of recipes_of, each with the
/// number of steps before it.
std::string recipes_text(const RunConfig& config, const StageConfig& stage);

}  // namespace fp8lab
