// A log of the operations that ran and of their work.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "emulation/ops/list.hpp"

namespace fp8lab {

/// Totals of all operations of one kind.
struct WorkOfKind {
  std::string_view name;  ///< kName of the operation
  WorkClass work_class = WorkClass::elementwise;
  std::int64_t calls = 0;
  double work = 0;     ///< in the units of the operation's work()
  double seconds = 0;  ///< 0 if nothing was timed
};

/// Totals by kind, see kind_of(). A kind is an operation's name and its variant.
using WorkLog = std::map<std::string, WorkOfKind>;

/// Returns what the speed of an operation depends on apart from its shape: quantizers,
/// accumulators, types. Empty for operations without such variants.
template <class Op>
std::string variant_of(const Op&) {
  return {};
}
std::string variant_of(const ops::Copy& op);
std::string variant_of(const ops::Quantize& op);
std::string variant_of(const ops::QuantizeBoth& op);
std::string variant_of(const ops::ProduceQuantize& op);
std::string variant_of(const ops::Dequantize& op);
std::string variant_of(const ops::UpdateDelayedScale& op);
std::string variant_of(const ops::SmoothingFactors& op);
std::string variant_of(const ops::Gemm& op);
std::string variant_of(const ops::Product& op);
std::string variant_of(const ops::QuantizedAttentionForward& op);
std::string variant_of(const ops::QuantizedAttentionBackward& op);
std::string variant_of(const ops::QuantizedAttentionCached& op);
std::string variant_of(const ops::Compensate& op);
std::string variant_of(const ops::MeasureOperand& op);
std::string variant_of(const ops::MeasureBoth& op);
std::string variant_of(const ops::RmsNormForward& op);
std::string variant_of(const ops::RmsNormBackward& op);
std::string variant_of(const ops::AdamW& op);
std::string variant_of(const ops::StoreState& op);
std::string variant_of(const ops::LoadState& op);
std::string variant_of(const ops::AdvanceMoments& op);
std::string variant_of(const ops::UpdateWeights& op);

/// Returns the key of an operation in a WorkLog.
template <class Op>
std::string kind_of(const Op& op) {
  const std::string variant = variant_of(op);
  return variant.empty() ? std::string(Op::kName) : std::string(Op::kName) + " " + variant;
}

/// Adds one operation that took `seconds` to the log.
template <class Op>
void add(WorkLog& log, const Op& op, double seconds = 0) {
  WorkOfKind& kind = log[kind_of(op)];
  kind.name = Op::kName;
  kind.work_class = Op::kClass;
  ++kind.calls;
  kind.work += op.work();
  kind.seconds += seconds;
}

/// Backend::fill_zero as an operation of the log; its work is the number of bytes written. Part of
/// the optimizer's work, because a step clears the gradients.
struct FillZero {
  static constexpr std::string_view kName = "fill_zero";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  TensorView view;

  double work() const { return elements(view) * static_cast<double>(size_of(view.dtype)); }
};

}  // namespace fp8lab
