// The product of what a compensated clamp takes away.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows) += what the compensated clamp of one of the two operands took away, times the
/// other one, after their Gemm. A was quantized from `a_source`, or its transpose with
/// `transpose_a`, and B likewise. With r = numerics::clamp_residual, which is sparse, s = sum over
/// ascending k of RN(r(A[m, k]) * B[n, k]) where r is not zero (or of A[m, k] * r(B[n, k])), each
/// addition from +0 on rounded, and d = RN(d + s), rounded to d's type; rows of the clamped operand
/// without outliers leave d as it is. The other one is its source, or with Compensation::quantized
/// the values RN(scale * decode(code)) that the Gemm multiplied, where its transform has brought
/// them. So d is what the Gemm has stored, rounded, and the residuals are not: a sum of codes and
/// residuals in one format, as in emulations that cast Q(x) + r to E4M3, would round these too.
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

  /// True where the clamp is that of A.
  bool is_left() const { return a.spec.transform.is_compensated(); }
  const QuantizedOperand& clamped() const { return is_left() ? a : b; }
  const QuantizedOperand& other() const { return is_left() ? b : a; }
  bool takes_codes() const {
    return clamped().spec.transform.compensation == Compensation::quantized;
  }

  /// Throws Error unless exactly one of the operands has a compensated clamp, and for shapes and
  /// types that do not fit.
  void check() const;
  /// Multiply-adds of the whole product; outliers are a share of it.
  double work() const { return elements(d) * static_cast<double>(a.k); }
};

}  // namespace fp8lab::ops
