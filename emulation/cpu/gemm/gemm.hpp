// The fast emulated GEMM without its epilogue: sm90_wgmma_fp8, sm90_bf16 and ideal_fp32 run blocked
// and vectorised, see gemm.cpp.
#pragma once

#include "emulation/ops/gemm/gemm_plan.hpp"

namespace fp8lab::cpu {

/// Computes accumulators (a.rows, b.rows) f32 = the sums of `plan` before any epilogue, with the
/// speed and the bits of ops::Gemm. Precondition: the operands have passed check_gemm_operands. A
/// NaN may have any bits.
void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators);

}  // namespace fp8lab::cpu
