// The fast emulated GEMM.
#pragma once

#include "emulation/api/backend.hpp"
#include "emulation/cpu/gemm_plan.hpp"

namespace fp8lab::cpu {

/// d (a.rows, b.rows) = A B^T with scales: the contract of Backend::gemm and, bit for bit, the
/// results of gemm_reference for every number of threads and every SIMD target (numerics.md
/// sections 3, 6 and 7). sm90_wgmma_fp8, sm90_bf16 and ideal_fp32 run blocked and vectorised; the
/// other accumulators go through the reference. Throws Error for what plan_gemm and
/// check_gemm_operands refuse.
void gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
          const TensorView& bias, bool accumulate, const TensorView& d);

/// accumulators (a.rows, b.rows) f32 = the sums of `plan` before any epilogue, as fast as gemm and
/// with its bits. The operands have passed check_gemm_operands. A NaN may have any bits.
void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators);

}  // namespace fp8lab::cpu
