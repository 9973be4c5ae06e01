// Explains the effect of estimators on measured gradient errors.
#pragma once

#include <optional>
#include <string>

#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// Returns a sentence that names the first estimator of `recipe`; none if the recipe has no
/// estimator. An estimator changes gradients on purpose, so its part of an error (ProductError,
/// ErrorSource) is no arithmetic error.
std::optional<std::string> estimator_remark(const Recipe& recipe);

}  // namespace fp8lab
