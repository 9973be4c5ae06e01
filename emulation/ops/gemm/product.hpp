// The product of two tensors through their quantized operands.
#pragma once

#include "emulation/ops/gemm/compensate.hpp"
#include "emulation/ops/gemm/estimator_factor.hpp"
#include "emulation/ops/gemm/gemm.hpp"
#include "emulation/ops/gemm/rotate_back.hpp"
#include "emulation/ops/pointwise/add.hpp"
#include "emulation/ops/pointwise/copy.hpp"

namespace fp8lab::ops {

/// A GEMM, and after it the operations that the transforms of its operands need, in this order:
/// 1. if a clamp is compensated with codes, adds the product of its residual and the other
///    operand's codes;
/// 2. if d is the gradient of a tensor with an estimator, multiplies d by the estimator's factors;
/// 3. undoes rotations of rows;
/// 4. if a clamp is compensated with tensors, adds the product of its residual and the other
///    operand's tensor.
/// If one of these follows a GEMM that accumulates, or if the GEMM rounds to BF16 and d is FP32,
/// all of this runs in separate memory. Afterwards d = RN(d + product) in FP32, or the product
/// itself if nothing accumulates.
struct Product {
  static constexpr std::string_view kName = "product";
  static constexpr WorkClass kClass = WorkClass::gemm;

  Gemm gemm;
  /// Sources of the operands, (rows, k) or transposed: read if a clamp is compensated.
  TensorView a_source{};
  bool transpose_a = false;
  TensorView b_source{};
  bool transpose_b = false;
  TensorView apart{};  ///< of d's shape and apart_type(): memory for the product if is_apart()
  /// If d is the gradient of a tensor whose quantizer has an estimator: the operand to which the
  /// tensor was quantized, and the tensor, (rows, k).
  const QuantizedOperand* estimated = nullptr;
  TensorView estimated_source{};

  bool has_rotation() const { return gemm.a.space_of_rows() || gemm.b.space_of_rows(); }
  /// Returns the compensation of a clamp of one of the operands.
  Compensation compensation() const {
    const Transform &left = gemm.a.spec.transform, &right = gemm.b.spec.transform;
    return left.is_compensated() ? left.compensation() : right.compensation();
  }
  bool has_estimator() const { return estimated != nullptr; }
  /// Returns true if the GEMM rounds to a narrower type than that of d.
  bool is_narrow() const { return gemm.spec.output == DType::bf16 && gemm.d.dtype == DType::f32; }
  /// Returns true if d stays unchanged until the product is finished.
  bool is_apart() const {
    const bool is_followed =
        has_estimator() || has_rotation() || compensation() != Compensation::none;
    return is_narrow() || (gemm.accumulate && is_followed);
  }
  DType apart_type() const { return is_narrow() ? DType::bf16 : DType::f32; }

  /// Calls visit(op) for each operation that this one consists of, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    const QuantizedOperand &a = gemm.a, &b = gemm.b;
    const TensorView& d = is_apart() ? apart : gemm.d;
    if (is_apart()) {
      visit(Gemm{.spec = gemm.spec, .a = a, .b = b, .bias = gemm.bias, .d = d});
    } else {
      visit(gemm);
    }
    const Compensate compensate{.a = a,
                                .a_source = a_source,
                                .transpose_a = transpose_a,
                                .b = b,
                                .b_source = b_source,
                                .transpose_b = transpose_b,
                                .d = d};
    if (compensation() == Compensation::quantized) visit(compensate);
    if (has_estimator())
      visit(EstimatorFactor{.operand = *estimated, .source = estimated_source, .d = d});
    if (has_rotation()) visit(RotateBack{.a = a, .b = b, .d = d});
    if (compensation() == Compensation::original) visit(compensate);
    if (!is_apart()) return;
    if (gemm.accumulate) {
      visit(Add{.a = gemm.d, .b = apart, .sum = gemm.d});
    } else {
      visit(Copy{apart, gemm.d});
    }
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, gemm.a);
    visit_read_operand(visit, gemm.b);
    visit(reads("bias", gemm.bias));
    visit(reads("a source", a_source));
    visit(reads("b source", b_source));
    if (estimated != nullptr) visit_read_operand(visit, *estimated);
    visit(reads("estimated source", estimated_source));
    if (is_apart()) visit(writes("product", apart));
    visit(gemm.accumulate ? updates("d", gemm.d) : writes("d", gemm.d));
  }
  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Multiply-adds of the GEMM.
  double work() const { return gemm.work(); }
};

}  // namespace fp8lab::ops
