// One case of an operation, run on two backends and compared byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "emulation/cases/operation_case.hpp"

namespace fp8lab {

/// Where two outputs differ first.
struct KernelMismatch {
  std::string kernel, what;
  std::size_t tensor = 0;
  std::int64_t row = 0, col = 0;
  std::uint64_t expected = 0, actual = 0;  ///< bits
  std::int64_t count = 0;                  ///< differing elements of the case
  bool guard = false;                      ///< memory around a tensor was written instead
};

/// Runs `drawn` once on `expected` and `repeats` times on `tested`, each time from the same initial
/// data: a difference between repeats is a race. Every tensor lies inside a larger buffer of a
/// known byte, with gaps between its rows where the operation allows them. Adds the elements of the
/// outputs to `compared`. Nothing is returned when all bits agree and no byte outside changed.
std::optional<KernelMismatch> compare_case(const OperationCase& drawn, Backend& expected,
                                           Backend& tested, int repeats, std::uint64_t& compared);

}  // namespace fp8lab
