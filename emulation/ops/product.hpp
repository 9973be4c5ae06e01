// The product of two tensors through their quantized operands.
#pragma once

#include "emulation/ops/compensate.hpp"
#include "emulation/ops/gemm.hpp"
#include "emulation/ops/rotate_back.hpp"

namespace fp8lab::ops {

/// A GEMM, and after it what the transforms of its operands leave to be done: rows are rotated
/// back, then what clamps cut away is multiplied and added.
struct Product {
  static constexpr std::string_view kName = "product";
  static constexpr WorkClass kClass = WorkClass::gemm;

  Gemm gemm;
  /// What the operands were made from, (rows, k) or transposed: read where a clamp is compensated.
  TensorView a_source;
  bool transpose_a = false;
  TensorView b_source;
  bool transpose_b = false;

  /// Calls visit(op) for each operation that this one stands for, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    const QuantizedOperand &a = gemm.a, &b = gemm.b;
    const Transform &left = a.spec.transform, &right = b.spec.transform;
    visit(gemm);
    if (left.left || right.left) visit(RotateBack{a, b, gemm.d});
    if (left.compensated || right.compensated) {
      visit(Compensate{a, a_source, transpose_a, b, b_source, transpose_b, gemm.d});
    }
  }

  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Multiply-adds of the GEMM.
  double work() const { return gemm.work(); }
};

}  // namespace fp8lab::ops
