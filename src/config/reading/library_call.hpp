// "cublaslt_h200:MODE": a call of cuBLASLt as measured on the H200, in a few words.
#pragma once

#include <cstdint>
#include <string>

#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// A library GEMM D (M, N) = A (M, K) B (N, K)^T: accumulation, operands, and output format, which
/// gemm.output cannot always express.
struct LibraryCall {
  GemmSpec gemm;
  QuantSpec a;
  QuantSpec b;
  numerics::FormatSpec output = numerics::kBF16;
  TileShape scales_a{};  ///< tiles of the mode; the operands must use these
  TileShape scales_b{};
};

/// Returns true for texts that parse_library_call reads.
bool is_library_call(const std::string& text);

/// "cublaslt_h200:MODE[/fast|/promote][/OUTPUT][/split_k=N]" with MODE tensor, row, 1x128x1x128,
/// 1x128x128x128, 128x128x1x128 (scales of A, then of B) or bf16, and OUTPUT bf16, fp32, fp16,
/// e4m3fn or e5m2. The defaults are promote (FAST_ACCUM off) for FP8, bf16 output and no split;
/// operands are e4m3fn with current fp32 scales of the mode's tiles. Throws Error naming the word.
LibraryCall parse_library_call(const std::string& text);

/// Throws Error for calls that the library refused on the H200 (emulation/specification.md, "Calls
/// of cuBLASLt"): types and scales other than the mode's, e5m2 by e5m2, FP8 outputs in modes that
/// do not offer them, and an FP8 GEMM (M, N, K) whose extents are not multiples of 16, except for
/// the M = 1000 that ran. Also throws for split-K with scales by row, which was never observed.
void check_library_call(const LibraryCall& call, std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace fp8lab
