// GEMM by the scalar definition of numerics/schedule.hpp. It covers the accumulators that no
// instruction of this device has: mma.sync FP8 semantics on FP8 codes and ideal FP32 sums, one
// thread for each element, and exact sums other than integer sums that fit into 32 bits, in FP64.
#pragma once

#include <cstdint>

#include "emulation/numerics/schedule.hpp"
#include "kernels/gemm/gemm_wgmma.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// D (m, n) = A (m, k) B (n, k)^T, with codes of `code_bytes` in element.format_a and format_b.
struct ScalarGemm {
  numerics::ElementGemm element;
  numerics::Epilogue epilogue;
  int code_bytes = 1;
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  std::int64_t a_stride = 0, b_stride = 0;
  ScaleGrid scale_a, scale_b;
  const void* bias = nullptr;
  bool bias_bf16 = false;
  void* d = nullptr;
  std::int64_t d_stride = 0;
};

void gemm_scalar(Context& context, const ScalarGemm& gemm);

/// The same for ChainUnit::ideal_exact (picture in gemm_exact.cu).
void gemm_exact(Context& context, const ScalarGemm& gemm);

}  // namespace fp8lab::cuda
