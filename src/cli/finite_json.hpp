// Numbers of `--json`.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace fp8lab::cli {

/// Returns null for infinity and NaN, which JSON cannot represent.
inline nlohmann::ordered_json finite_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace fp8lab::cli
