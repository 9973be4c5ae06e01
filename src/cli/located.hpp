// The first wrong bit, in words and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "src/replay/locate.hpp"

namespace fp8lab::cli {

/// Lines that call the two sides `a` and `b`; for a difference that was found.
std::string describe(const LocatedDifference& found, const std::string& a, const std::string& b);
nlohmann::ordered_json to_json(const LocatedDifference& found);

}  // namespace fp8lab::cli
