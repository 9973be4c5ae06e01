#include "src/validate/kernels.hpp"

#include <iterator>
#include <map>

#include "emulation/base/input_error.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {
namespace {

/// Of so many cases of a kernel, the last one is also run with rows that lie otherwise, once.
constexpr std::uint64_t kCallsPerLayout = 4;

}  // namespace

KernelOutcome validate_kernels(Backend& expected, Backend& tested, const KernelOptions& options) {
  std::map<std::string, KernelReport> reports;
  KernelOutcome outcome;
  const CaseVisitor compare = [&](const OperationCase& drawn) {
    if (drawn.name.find(options.only) == std::string::npos) return;
    KernelReport& report = reports[drawn.name];
    report.kernel = drawn.name;
    const std::uint64_t call = report.calls++;
    std::uint64_t compared = 0;
    auto mismatch =
        compare_case(drawn, expected, tested, kRowLayouts[0], options.repeats, compared);
    if (!mismatch && call % kCallsPerLayout == kCallsPerLayout - 1) {
      const std::size_t other = 1 + call / kCallsPerLayout % (std::size(kRowLayouts) - 1);
      std::uint64_t again = 0;  // not counted twice
      mismatch = compare_case(drawn, expected, tested, kRowLayouts[other], 1, again);
    }
    report.outputs += compared;
    outcome.outputs += compared;
    if (mismatch && report.mismatches++ == 0) outcome.mismatches.push_back(*mismatch);
    if (options.progress) options.progress(drawn.name, outcome);
  };
  for (int round = 0; round < options.rounds || outcome.outputs < options.outputs; ++round) {
    for (const CaseSource& source : kCaseSources) {
      for_each_case(source, options.seed, round, compare);
    }
    if (reports.empty()) {
      throw InputError(
          {.where = "validate kernels", .noun = "no kernel is called", .key = options.only});
    }
  }
  for (auto& [name, report] : reports) outcome.kernels.push_back(report);
  return outcome;
}

}  // namespace fp8lab
