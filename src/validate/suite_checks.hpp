// The individual checks of the suite, with one factory function each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "emulation/cases/case_generator.hpp"
#include "src/validate/suite.hpp"

namespace fp8lab {

/// Counts comparisons and keeps the first mismatch.
class CheckTally {
 public:
  CheckTally(std::string name, bool stop_at_mismatch) : stop_(stop_at_mismatch) {
    report_.name = std::move(name);
  }

  /// Returns false if the check should end. Calls `where` only for the first mismatch.
  template <class Where>
  bool check(std::uint32_t expected, std::uint32_t actual, Where&& where) {
    ++report_.cases;
    if (expected == actual) return true;
    if (report_.mismatches++ == 0) describe(expected, actual, where());
    return !stop_;
  }

  const CheckReport& report() const { return report_; }

 private:
  void describe(std::uint32_t expected, std::uint32_t actual, const std::string& where);

  CheckReport report_;
  bool stop_;
};

/// Checks conversions to eight formats under every rounding and overflow policy.
SuiteCheck cast_check(const Implementation& expected, CaseGenerator& cases);

/// Checks scales by every rule, at limits, powers of two, their neighbours and random amaxes.
SuiteCheck scale_check(const Implementation& expected, CaseGenerator& cases);

/// Checks whole quantizations: tiles, short edges, both orientations and source types.
SuiteCheck quantize_check(const Implementation& expected, CaseGenerator& cases);

/// Checks single tensor-core instructions with every pair of case kinds.
SuiteCheck group_check(const Implementation& expected, CaseGenerator& cases);

/// Checks output elements of the library's modes with alpha, beta, bias and split-K.
SuiteCheck element_check(const Implementation& expected, CaseGenerator& cases);

/// Checks whole GEMMs of every scale order and schedule.
SuiteCheck gemm_check(const Implementation& expected, CaseGenerator& cases);

/// Checks the recorded instructions of an mma.bin against their recorded results.
SuiteCheck recorded_group_check(const std::filesystem::path& file);

/// Checks the recorded library GEMMs of a gemm.bin or gemm_edge.bin.
SuiteCheck recorded_element_check(const std::filesystem::path& file);

}  // namespace fp8lab
