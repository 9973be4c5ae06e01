// The way back of what was done along the rows of operands.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows), bf16 or f32, after their Gemm, taken out of the spaces of their rows
/// (space_of_rows): of a left Hadamard transform, or of the Hadamard transform or smoothing in
/// which the operand's source was left. From (H_a A) (H_b B)^T = H_a (A B^T) H_b^T the columns of d
/// are multiplied by the inverse of H_a, where A has such a space, then its rows by that of H_b,
/// each as undo_transform does it, in FP32; the result is rounded to d's type. A smoothing,
/// diag(1/s) or diag(s), is undone alike: elements are multiplied or divided by its factors.
struct RotateBack {
  static constexpr std::string_view kName = "rotate_back";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& a;
  const QuantizedOperand& b;
  TensorView d;

  /// Throws Error unless the rows of an operand are in a space, where both kinds meet in one
  /// operand, and for shapes and types that do not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return 2.0 * elements(d); }
};

}  // namespace fp8lab::ops
