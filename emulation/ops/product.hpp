// The product of two tensors through their quantized operands.
#pragma once

#include "emulation/ops/add.hpp"
#include "emulation/ops/compensate.hpp"
#include "emulation/ops/estimator_factor.hpp"
#include "emulation/ops/gemm.hpp"
#include "emulation/ops/rotate_back.hpp"

namespace fp8lab::ops {

/// A GEMM, and after it what the transforms of its operands leave to be done: what a clamp cut away
/// is multiplied with the codes of the other operand and added, where those are meant, the
/// estimator of the tensor whose gradient this is multiplies it, rows are rotated back, and what a
/// clamp cut away is multiplied with the tensors themselves and added. Where something follows a
/// GEMM that accumulates, all is done apart, and d = RN(d + product) in FP32 afterwards.
struct Product {
  static constexpr std::string_view kName = "product";
  static constexpr WorkClass kClass = WorkClass::gemm;

  Gemm gemm;
  /// What the operands were made from, (rows, k) or transposed: read where a clamp is compensated.
  TensorView a_source{};
  bool transpose_a = false;
  TensorView b_source{};
  bool transpose_b = false;
  TensorView apart{};  ///< f32 of d's shape: memory for the product if is_apart()
  /// Where d is the gradient of a tensor whose quantizer has an estimator: the operand that it was
  /// quantized to, and the tensor, (rows, k).
  const QuantizedOperand* estimated = nullptr;
  TensorView estimated_source{};

  bool has_rotation() const { return gemm.a.space_of_rows() || gemm.b.space_of_rows(); }
  /// What a clamp of one of the operands is compensated with.
  Compensation compensation() const {
    const Transform &left = gemm.a.spec.transform, &right = gemm.b.spec.transform;
    return left.is_compensated() ? left.compensation : right.compensation;
  }
  bool has_estimator() const { return estimated != nullptr; }
  /// True where d keeps what it was until the product is finished.
  bool is_apart() const {
    return gemm.accumulate &&
           (has_estimator() || has_rotation() || compensation() != Compensation::none);
  }

  /// Calls visit(op) for each operation that this one stands for, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    const QuantizedOperand &a = gemm.a, &b = gemm.b;
    const TensorView& d = is_apart() ? apart : gemm.d;
    if (is_apart()) {
      visit(Gemm{gemm.spec, a, b, gemm.bias, false, d});
    } else {
      visit(gemm);
    }
    const Compensate compensate{a, a_source, transpose_a, b, b_source, transpose_b, d};
    if (compensation() == Compensation::quantized) visit(compensate);
    if (has_estimator()) visit(EstimatorFactor{*estimated, estimated_source, d});
    if (has_rotation()) visit(RotateBack{a, b, d});
    if (compensation() == Compensation::original) visit(compensate);
    if (is_apart()) visit(Add{gemm.d, apart, gemm.d});
  }

  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Multiply-adds of the GEMM.
  double work() const { return gemm.work(); }
};

}  // namespace fp8lab::ops
