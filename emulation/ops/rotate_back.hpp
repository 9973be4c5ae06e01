// The way back of transforms along the rows of operands.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows), bf16 or f32, after their Gemm: the Hadamard transforms of their rows undone.
/// From (H_a A) (H_b B)^T = H_a (A B^T) H_b^T the columns of d are multiplied by the inverse of
/// H_a, where A has such a transform, then its rows by that of H_b, each as undo_transform does it,
/// in FP32; the result is rounded to d's type.
struct RotateBack {
  static constexpr std::string_view kName = "rotate_back";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& a;
  const QuantizedOperand& b;
  TensorView d;

  /// Throws Error unless an operand has a transform of its rows, and for shapes and types that do
  /// not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return 2.0 * elements(d); }
};

}  // namespace fp8lab::ops
