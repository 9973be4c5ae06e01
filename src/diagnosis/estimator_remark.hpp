// What estimators do to measures of gradients.
#pragma once

#include <optional>
#include <string>

#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// A sentence for readers of errors under `recipe`, with the first of its estimators; nothing where
/// it has none. An estimator changes gradients on purpose, so that its part of an error
/// (ProductError, ErrorSource) is none of arithmetic.
std::optional<std::string> estimator_remark(const Recipe& recipe);

}  // namespace fp8lab
