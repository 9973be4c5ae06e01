// Describes the first differing bit as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "src/replay/locate.hpp"

namespace fp8lab::cli {

/// Returns lines that name the two sides `a` and `b`. Precondition: a difference was found.
std::string describe(const LocatedDifference& found, const std::string& a, const std::string& b);
nlohmann::ordered_json to_json(const LocatedDifference& found);

}  // namespace fp8lab::cli
