#include "src/validate/kernels.hpp"

#include <map>

#include "emulation/base/error.hpp"

namespace fp8lab {
KernelOutcome validate_kernels(Backend& expected, Backend& tested, const KernelOptions& options) {
  std::map<std::string, KernelReport> reports;
  KernelOutcome outcome;
  for (int round = 0; round < options.rounds || outcome.outputs < options.outputs; ++round) {
    for (const auto calls : {quantization_calls, gemm_calls, model_calls}) {
      for (const KernelCall& call :
           calls(options.seed + static_cast<std::uint64_t>(round), round)) {
        if (call.kernel.find(options.only) == std::string::npos) continue;
        KernelReport& report = reports[call.kernel];
        report.kernel = call.kernel;
        ++report.calls;
        std::uint64_t compared = 0;
        const auto mismatch = compare_call(call, expected, tested, options.repeats, compared);
        report.outputs += compared;
        outcome.outputs += compared;
        if (mismatch && report.mismatches++ == 0) outcome.mismatches.push_back(*mismatch);
        if (options.progress) options.progress(call.kernel, outcome.outputs);
      }
    }
    if (reports.empty())
      throw Error("validate kernels: no kernel is called '" + options.only + "'");
  }
  for (auto& [name, report] : reports) outcome.kernels.push_back(report);
  return outcome;
}

}  // namespace fp8lab
