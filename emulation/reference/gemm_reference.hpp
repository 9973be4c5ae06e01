// The slow, element-by-element GEMM that defines what every other GEMM must return.
#pragma once

#include "emulation/numerics/schedule.hpp"
#include "emulation/ops/gemm_plan.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::reference {

/// d (a.rows, b.rows) = A B^T with scales, for every accumulator, schedule, scale order and
/// split_k; the contract of ops::Gemm (numerics.md sections 6 and 7). Bias is added after the
/// scales, separately rounded; `accumulate` reads d as C with beta = 1. Each element is rounded
/// once, to nearest even, to the type of d. Throws Error for what plan_gemm and
/// check_gemm_operands refuse.
void gemm_reference(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                    const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::reference
