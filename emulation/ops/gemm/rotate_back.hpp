// Undoes transforms along the rows of operands in their product.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// After the Gemm of a and b, moves d (a.rows, b.rows), bf16 or f32, out of the spaces of the
/// operands' rows (space_of_rows): that of a left Hadamard transform, or that of the Hadamard
/// transform or smoothing in which the operand's source was left. From
/// (H_a A) (H_b B)^T = H_a (A B^T) H_b^T the columns of d are multiplied by the inverse of H_a, if
/// A has such a space, then its rows by that of H_b, each as in undo_transform, in FP32; the result
/// is rounded to d's type. A smoothing, diag(1/s) or diag(s), is undone likewise: elements are
/// multiplied or divided by its factors.
struct RotateBack {
  static constexpr std::string_view kName = "rotate_back";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& a;
  const QuantizedOperand& b;
  TensorView d;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, a);
    visit_read_operand(visit, b);
    visit(updates("d", d));
  }
  /// Throws Error unless the rows of an operand are in a space, if one operand has both kinds of
  /// spaces, and for shapes and types that do not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return 2.0 * elements(d); }
};

}  // namespace fp8lab::ops
