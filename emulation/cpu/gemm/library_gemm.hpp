// A whole call of a GEMM library: accumulators, scales, alpha, beta, bias and output conversion.
#pragma once

#include "emulation/backend.hpp"

namespace fp8lab::cpu {

/// Arguments of a library call that ops::Gemm does not have (specification.md, "Epilogue and
/// split K"). Names are the library's: D (M, N) = alpha * A B^T + beta * C, with A (M, K) and B
/// (N, K) contiguous along K.
struct LibraryEpilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  TensorView c;     ///< (M, N) f32 or bf16, read when beta != 0
  TensorView bias;  ///< (1, M) f32 or bf16, one value for each row of A; empty: none
  numerics::FormatSpec output = numerics::kBF16;  ///< bf16, fp32, fp16, e4m3fn or e5m2
  float output_scale = 1.0f;                      ///< d_scale of e4m3fn and e5m2
};

/// Returns the storage type of a result of format `output`: u8 codes, bf16, or f32
/// (fp16 values are widened).
DType library_storage(const numerics::FormatSpec& output);

/// Computes d (a.rows, b.rows) of library_storage(epilogue.output) as the call does, see
/// specification.md, "Calls of cuBLASLt". Scales of the operands enter as in ops::Gemm. The bias is
/// added with a rounding of its own, and the value is rounded once to the output, to nearest even;
/// FP8 saturates. Ignores spec.output. Throws Error for operands that ops::Gemm refuses and for
/// shapes and types that do not fit.
void library_gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                  const LibraryEpilogue& epilogue, const TensorView& d);

}  // namespace fp8lab::cpu
