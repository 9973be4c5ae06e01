// The matrix product of two operands.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"
#include "emulation/spec/gemm_spec.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows) = A B^T with scales, by specification.md, "K schedules and scale orders";
/// gemm_plan.hpp has the order of its sums. `bias` (1, b.rows), bf16 or f32, or empty, is added to
/// every row after the scales, separately rounded. accumulate: d (f32) += ... through
/// fma(acc, scale, d), beta = 1. Each element is rounded once, to nearest even, to d's type.
struct Gemm {
  static constexpr std::string_view kName = "gemm";
  static constexpr WorkClass kClass = WorkClass::gemm;

  const GemmSpec& spec;
  const QuantizedOperand& a;
  const QuantizedOperand& b;
  TensorView bias;
  bool accumulate = false;
  TensorView d;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, a);
    visit_read_operand(visit, b);
    visit(reads("bias", bias));
    visit(accumulate ? updates("d", d) : writes("d", d));
  }
  /// Throws Error for shapes and types that do not fit, and for what gemm_refusal refuses.
  void check() const;
  /// Multiply-adds.
  double work() const { return elements(d) * static_cast<double>(a.k); }
};

}  // namespace fp8lab::ops
