// Operands read back as values.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// destination (rows, k), or (k, rows) when `transpose`, bf16 or f32, = the FP32 product
/// scale * decode(code), rounded to nearest even to the destination's type; NaN canonical. Without
/// a scale the decoded or stored value itself. A transform along K is undone in FP32 before the
/// rounding; what a clamp took away stays away.
struct Dequantize {
  static constexpr std::string_view kName = "dequantize";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantizedOperand& operand;
  bool transpose = false;
  TensorView destination;

  void check() const;
  /// Elements read back.
  double work() const { return elements(destination); }
};

}  // namespace fp8lab::ops
