// The slow, element-by-element GEMM that defines what every other GEMM must return.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/numerics/schedule.hpp"
#include "emulation/ops/gemm_plan.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::reference {

/// The operation for every accumulator, schedule, scale order and split_k. Throws Error for what
/// plan_gemm and check_gemm_operands refuse.
void gemm(const ops::Gemm& op);

/// accumulators (a.rows, b.rows) f32 = the sums of `plan` before any epilogue. The operands have
/// passed check_gemm_operands.
void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators);

/// Of one row of A and one of B: the accumulator of their element, before any epilogue, when only
/// the first `every`, 2 * `every`, ... elements of K are added, and at last all of them.
std::vector<float> partial_sums(const GemmSpec& spec, const QuantizedOperand& a,
                                const QuantizedOperand& b, std::int64_t every);

}  // namespace fp8lab::reference
