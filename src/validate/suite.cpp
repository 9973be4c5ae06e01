#include "src/validate/suite.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/file_kind.hpp"

#include <fmt/format.h>

#include "src/validate/suite_checks.hpp"

namespace fp8lab {
namespace {

/// Memory of a backend that is released at the end of an operation.
class BackendMemory {
 public:
  explicit BackendMemory(Backend& backend) : backend_(backend), mark_(backend.memory_mark()) {}
  ~BackendMemory() { backend_.release_to(mark_); }
  BackendMemory(const BackendMemory&) = delete;
  BackendMemory& operator=(const BackendMemory&) = delete;

  /// Copies a contiguous host tensor; an empty one stays empty.
  TensorView upload(const TensorView& host) {
    if (host.empty()) return {};
    TensorView view = backend_.allocate(host.dtype, host.rows, host.cols);
    backend_.upload(view, host.data);
    return view;
  }
  QuantizedOperand upload(const QuantizedOperand& host) {
    QuantizedOperand operand = host;
    operand.codes = upload(host.codes);
    operand.scales = upload(host.scales);
    return operand;
  }

 private:
  Backend& backend_;
  std::size_t mark_;
};

}  // namespace

Implementation backend_implementation(Backend& backend) {
  Implementation implementation;
  implementation.quantize = [&backend](const TensorView& source, bool transpose,
                                       const RandomKey& key, QuantizedOperand& operand) {
    BackendMemory memory(backend);
    QuantizedOperand there = memory.upload(operand);
    there.key = key;
    backend.run(
        ops::Quantize{.source = memory.upload(source), .transpose = transpose, .operand = there});
    backend.download(operand.codes.data, there.codes);
    if (!operand.scales.empty()) backend.download(operand.scales.data, there.scales);
  };
  implementation.gemm = [&backend](const GemmSpec& spec, const QuantizedOperand& a,
                                   const QuantizedOperand& b, const TensorView& bias,
                                   bool accumulate, const TensorView& d) {
    BackendMemory memory(backend);
    const TensorView there = memory.upload(d);
    backend.run(ops::Gemm{.spec = spec,
                          .a = memory.upload(a),
                          .b = memory.upload(b),
                          .bias = memory.upload(bias),
                          .accumulate = accumulate,
                          .d = there});
    backend.download(d.data, there);
  };
  return implementation;
}

void CheckTally::describe(std::uint32_t expected, std::uint32_t actual, const std::string& where) {
  report_.first = fmt::format("{}: expected {:#x}, got {:#x}", where, expected, actual);
}

ValidationSuite::ValidationSuite(const Implementation& expected,
                                 const std::filesystem::path& golden, std::uint64_t seed) {
  CaseGenerator cases(seed);
  checks_.push_back(cast_check(expected, cases));
  checks_.push_back(scale_check(expected, cases));
  checks_.push_back(quantize_check(expected, cases));
  checks_.push_back(group_check(expected, cases));
  checks_.push_back(element_check(expected, cases));
  checks_.push_back(gemm_check(expected, cases));
  if (golden.empty()) return;
  const auto add = [&](const char* file, auto&& make) {
    const std::filesystem::path path = golden / file;
    if (is_file(path)) checks_.push_back(make(path));
  };
  const std::size_t generated = checks_.size();
  add("mma.bin", recorded_group_check);
  add("gemm.bin", recorded_element_check);
  add("gemm_edge.bin", recorded_element_check);
  if (checks_.size() == generated) {
    throw InputError({.where = golden.string(),
                      .reason = "no recorded vectors (mma.bin, gemm.bin, gemm_edge.bin)"});
  }
}

std::vector<CheckReport> ValidationSuite::run(const Implementation& tested,
                                              bool stop_at_mismatch) const {
  std::vector<CheckReport> reports;
  for (const SuiteCheck& check : checks_) {
    CheckTally tally(check.name, stop_at_mismatch);
    const bool offered = check.offered(tested);
    if (offered) check.run(tested, tally);
    reports.push_back(tally.report());
    reports.back().offered = offered;
    if (stop_at_mismatch && reports.back().mismatches > 0) break;
  }
  return reports;
}

}  // namespace fp8lab
