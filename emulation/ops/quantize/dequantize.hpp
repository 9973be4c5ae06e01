// Dequantization of operands.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// destination (rows, k), or (k, rows) with `transpose`, bf16 or f32, = the FP32 product
/// scale * decode(code), rounded to nearest even to the destination's type; NaN canonical. Without
/// a scale the decoded or stored value itself. A linear transform and the space of the operand's
/// source are undone in FP32 before the rounding, unless `keeps_space`. The residual of a clamp
/// is lost.
struct Dequantize {
  static constexpr std::string_view kName = "dequantize";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& operand;
  bool transpose = false;
  TensorView destination;
  bool keeps_space = false;  ///< values stay in the space in which the operand was quantized

  /// Returns true if a transform or a space has to be undone.
  bool leaves_space() const {
    return !keeps_space && (operand.spec.transform.is_linear() || operand.source_space);
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit_read_operand(visit, operand);
    visit(writes("destination", destination));
  }
  void check() const;
  /// Number of elements dequantized.
  double work() const { return elements(destination); }
};

}  // namespace fp8lab::ops
