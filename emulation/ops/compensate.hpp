// The product of what a compensated clamp takes away.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows) += what the compensated clamp of one of the two operands took away, times the
/// unquantized tensor of the other, after their Gemm. A was quantized from `a_source`, or its
/// transpose with `transpose_a`, and B likewise. With r = numerics::clamp_residual, which is
/// sparse, s = sum over ascending k of RN(r(A[m, k]) * B[n, k]) where r is not zero (or of A[m, k]
/// * r(B[n, k])), each addition from +0 on rounded, and d = RN(d + s), rounded to d's type; rows of
/// the clamped operand without outliers leave d as it is.
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

  /// Throws Error unless exactly one of the operands has a compensated clamp, and for shapes and
  /// types that do not fit.
  void check() const;
  /// Multiply-adds of the whole product; outliers are a share of it.
  double work() const { return elements(d) * static_cast<double>(a.k); }
};

}  // namespace fp8lab::ops
