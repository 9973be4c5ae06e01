// Every operation of a backend against another one: the CUDA kernels against the emulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/validate/compare_case.hpp"

namespace fp8lab {

/// What one kernel's calls came to.
struct KernelReport {
  std::string kernel;
  std::uint64_t calls = 0;
  std::uint64_t outputs = 0;     ///< compared elements
  std::uint64_t mismatches = 0;  ///< calls with a difference
};

struct KernelOutcome;

struct KernelOptions {
  std::uint64_t seed = 1;
  std::uint64_t outputs = 20'000'000;  ///< rounds go on until so many elements were compared
  int rounds = 4;                      ///< at least so many; from 4 on every size of shape is met
  int repeats = 2;
  std::string only;  ///< kernels whose name contains this text; empty: all
  /// After each case: its kernel, and what has been found so far, `kernels` not yet.
  std::function<void(const std::string& kernel, const KernelOutcome& so_far)> progress;
};

struct KernelOutcome {
  std::vector<KernelReport> kernels;
  std::vector<KernelMismatch> mismatches;  ///< the first of each kernel, in the order found
  std::uint64_t outputs = 0;
  bool good() const { return mismatches.empty(); }
};

/// Rounds over the cases of all operations (emulation/cases/list.hpp), with new shapes (one
/// element, odd, K tails, large) and adversarial data in each. Throws Error when `only` names
/// nothing.
KernelOutcome validate_kernels(Backend& expected, Backend& tested, const KernelOptions& options);

}  // namespace fp8lab
