// The product of a compensated clamp's residual.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// After the Gemm of a and b, d (a.rows, b.rows) += the residual of the one operand whose clamp is
/// compensated, times the other operand. A was quantized from `a_source`, or its transpose with
/// `transpose_a`, and B likewise. With r = numerics::clamp_residual, which is sparse, s = sum over
/// ascending k of RN(r(A[m, k]) * B[n, k]) where r is not zero (or of A[m, k] * r(B[n, k])), each
/// addition from +0 on rounded, and d = RN(d + s), rounded to d's type. Rows of the clamped operand
/// without outliers leave d unchanged. The other operand is its source, or with
/// Compensation::quantized the values RN(scale * decode(code)) that the Gemm multiplied, in the
/// space of its transform. So d is rounded as the Gemm has stored it, and the residuals are not
/// rounded. A sum of codes and residuals in one format, as in emulations that cast Q(x) + r to
/// E4M3, would round the residuals too.
struct Compensate {
  static constexpr std::string_view kName = "compensate";
  static constexpr WorkClass kClass = WorkClass::gemm;

  const QuantizedOperand& a;
  TensorView a_source;
  bool transpose_a = false;
  const QuantizedOperand& b;
  TensorView b_source;
  bool transpose_b = false;
  TensorView d;

  /// Returns true if the clamp is that of A.
  bool is_left() const { return a.spec.transform.is_compensated(); }
  const QuantizedOperand& clamped() const { return is_left() ? a : b; }
  const QuantizedOperand& other() const { return is_left() ? b : a; }
  bool takes_codes() const {
    return clamped().spec.transform.compensation() == Compensation::quantized;
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, a);
    visit(reads("a source", a_source));
    visit_read_operand(visit, b);
    visit(reads("b source", b_source));
    visit(updates("d", d));
  }
  /// Throws Error unless exactly one of the operands has a compensated clamp, and for shapes
  /// and types that do not fit.
  void check() const;
  /// Multiply-adds of the whole product; the outliers are a fraction of it.
  double work() const { return elements(d) * static_cast<double>(a.k); }
};

}  // namespace fp8lab::ops
