// Progress of long work, reported part by part.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace fp8lab {

/// Called before each part, with its name: `done` of `total` units ("batches", "tokens") are
/// complete. `done` is 0 at the beginning of the work.
using PartReport = std::function<void(const std::string& part, std::size_t done, std::size_t total,
                                      const char* unit)>;

}  // namespace fp8lab
