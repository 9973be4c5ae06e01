// Operands read back as values.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// destination (rows, k), or (k, rows) when `transpose`, bf16 or f32, = the FP32 product
/// scale * decode(code), rounded to nearest even to the destination's type; NaN canonical. Without
/// a scale the decoded or stored value itself. A linear transform and the space of the operand's
/// source are undone in FP32 before the rounding, unless `keeps_space`; what a clamp took away
/// stays away.
struct Dequantize {
  static constexpr std::string_view kName = "dequantize";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& operand;
  bool transpose = false;
  TensorView destination;
  bool keeps_space = false;  ///< values stay where the operand was quantized

  /// True where more than decoding is to be done.
  bool leaves_space() const {
    return !keeps_space && (operand.spec.transform.is_linear() || operand.source_space);
  }

  void check() const;
  /// Elements read back.
  double work() const { return elements(destination); }
};

}  // namespace fp8lab::ops
