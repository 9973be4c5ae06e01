// Variants of the arithmetic with one wrong step each, to test whether the suite detects them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/validate/suite.hpp"

namespace fp8lab {

/// A wrong implementation.
struct Mutant {
  std::string name;    ///< "fraction_bits_12"
  std::string broken;  ///< description of the fault
  Implementation implementation;
};

/// Returns variants of the scalar reference, each with one wrong step.
std::vector<Mutant> all_mutants();

struct MutantReport {
  std::string name;
  std::string broken;
  bool killed = false;
  std::string check;           ///< check that detected the mutant
  std::string first_mismatch;  ///< first mismatch of that check
};

struct MutantOptions {
  std::filesystem::path golden;  ///< folder of recorded vectors; empty: generated cases only
  std::uint64_t seed = 1;
  /// Called with the name of each implementation before it runs.
  std::function<void(const std::string& name)> progress;
};

struct MutantOutcome {
  std::vector<CheckReport> unmutated;  ///< every check on the scalar reference itself
  std::vector<MutantReport> mutants;

  /// Returns true if the unmutated reference passes every check and every mutant is detected.
  bool good() const;
};

/// Runs the suite with the results of `expected` and the recorded ones: on the scalar
/// reference, and then on each mutant up to its first mismatch. Precondition:
/// `expected` offers every function.
MutantOutcome validate_mutants(const Implementation& expected, const std::vector<Mutant>& mutants,
                               const MutantOptions& options = {});

}  // namespace fp8lab
