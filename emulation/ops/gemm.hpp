// The matrix product of two operands.
#pragma once

#include "emulation/ops/operand.hpp"
#include "emulation/spec/gemm_spec.hpp"

namespace fp8lab::ops {

/// d (a.rows, b.rows) = A B^T with scales, by numerics.md section 6; gemm_plan.hpp has the order of
/// its sums. `bias` (1, b.rows), bf16 or f32, or empty, is added to every row after the scales,
/// separately rounded. accumulate: d (f32) += ... through fma(acc, scale, d), beta = 1. Each
/// element is rounded once, to nearest even, to d's type.
struct Gemm {
  const GemmSpec& spec;
  const QuantizedOperand& a;
  const QuantizedOperand& b;
  TensorView bias;
  bool accumulate = false;
  TensorView d;
};

}  // namespace fp8lab::ops
