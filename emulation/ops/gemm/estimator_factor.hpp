// The gradient of a quantized tensor, by the estimator of its quantizer.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// d (rows, k), bf16 or f32, is the gradient of the values from which `operand` was quantized:
/// d = RN(d * f), rounded to d's type, with f = numerics::estimator_factor(operand.spec.estimator,
/// format, RN(y / s)). y is the element of `source` (rows, k), after the operand's transform if it
/// has one; then d is in the space of that transform as well. s is the decode scale of the
/// element's tile, 1 if the operand has no scale. The codes are not read.
struct EstimatorFactor {
  static constexpr std::string_view kName = "estimator_factor";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& operand;
  TensorView source;
  TensorView d;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, operand);
    visit(reads("source", source));
    visit(updates("d", d));
  }
  /// Throws Error unless the operand has an estimator and its scales, and for shapes
  /// and types that do not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return 3.0 * elements(d); }
};

}  // namespace fp8lab::ops
