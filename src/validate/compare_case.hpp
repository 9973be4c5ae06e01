// Runs one case of an operation on two backends and compares the results byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "emulation/cases/operation_case.hpp"

namespace fp8lab {

/// The first difference between two outputs.
struct KernelMismatch {
  std::string kernel, what;
  std::size_t tensor = 0;
  std::int64_t row = 0, col = 0;
  std::uint64_t expected = 0, actual = 0;  ///< bits
  std::int64_t count = 0;                  ///< number of differing elements in the case
  bool guard = false;  ///< true if memory around a tensor was overwritten instead
};

/// Runs `drawn` once on `expected` and `repeats` times on `tested`, each time from the same
/// initial data: a difference between repeats is a race. Every tensor lies inside a larger
/// buffer filled with a known byte, with gaps between its rows if the operation allows them.
/// Adds the number of output elements to `compared`. Returns nothing if all bits agree and no
/// byte outside the outputs changed.
std::optional<KernelMismatch> compare_case(const OperationCase& drawn, Backend& expected,
                                           Backend& tested, int repeats, std::uint64_t& compared);

}  // namespace fp8lab
