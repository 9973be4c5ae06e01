#include "src/cli/options/seed_option.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/input_error.hpp"

namespace fp8lab::cli {
namespace {

bool draws(const QuantSpec& spec) {
  return spec.rounding == numerics::Rounding::stochastic || spec.transform.has_drawn_signs();
}

}  // namespace

void check_seed(const Values& values, const std::string& command,
                std::span<const QuantSpec> specs) {
  if (values["seed"].is_default || std::any_of(specs.begin(), specs.end(), draws)) return;
  throw InputError(
      {.where = command,
       .key = "--seed",
       .reason = "has no effect: nothing is rounded stochastically, and no signs are drawn"});
}

std::vector<QuantSpec> weight_specs(const Recipe& recipe) {
  std::vector<QuantSpec> specs{recipe.linear.slot(Slot::fprop_w)};
  for (const RecipeOverride& entry : recipe.overrides) {
    specs.push_back(entry.recipe.slot(Slot::fprop_w));
  }
  return specs;
}

}  // namespace fp8lab::cli
