// The slow, element-by-element GEMM that defines what every other GEMM must return.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/numerics/schedule.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab::reference {

/// Implements ops::Gemm for every accumulator, schedule, scale order and split_k. Throws Error for
/// what plan_gemm and check_gemm_operands refuse.
void gemm(const ops::Gemm& op);

/// Computes accumulators (a.rows, b.rows) f32 = the sums of `plan` before any epilogue.
/// Precondition: the operands have passed check_gemm_operands.
void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators);

/// Returns partial sums of one row of A and one of B: their accumulator before any epilogue, after
/// only the first `every`, 2 * `every`, ... elements of K, and last after all of them.
std::vector<float> partial_sums(const GemmSpec& spec, const QuantizedOperand& a,
                                const QuantizedOperand& b, std::int64_t every);

}  // namespace fp8lab::reference
