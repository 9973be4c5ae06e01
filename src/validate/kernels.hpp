// Compares every operation of a backend with another backend: the CUDA kernels with the emulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/cases/compare_case.hpp"

namespace fp8lab {

/// Result of all calls of one kernel.
struct KernelReport {
  std::string kernel;
  std::uint64_t calls = 0;
  std::uint64_t outputs = 0;     ///< number of compared elements
  std::uint64_t mismatches = 0;  ///< number of calls with a difference
};

struct KernelOutcome;

struct KernelOptions {
  std::uint64_t seed = 1;
  std::uint64_t outputs = 20'000'000;  ///< rounds continue until this many elements were compared
  int rounds = 4;  ///< minimum number of rounds; 4 or more cover every size class
  int repeats = 2;
  std::string only;  ///< text in the names of the kernels to test; empty: all
  /// Called after each case with its kernel and the results so far, except `kernels`.
  std::function<void(const std::string& kernel, const KernelOutcome& so_far)> progress;
};

struct KernelOutcome {
  std::vector<KernelReport> kernels;
  std::vector<KernelMismatch> mismatches;  ///< first mismatch of each kernel, in the order found
  std::uint64_t outputs = 0;
  bool good() const { return mismatches.empty(); }
};

/// Runs rounds over the cases of all operations (emulation/cases/list.hpp), each with
/// new shapes (one element, odd, K tails, large) and adversarial data. All run with wide rows and
/// gaps; every fourth case of a kernel also in another one of kRowLayouts, in turn. Throws Error if
/// `only` matches no kernel.
KernelOutcome validate_kernels(Backend& expected, Backend& tested, const KernelOptions& options);

}  // namespace fp8lab
