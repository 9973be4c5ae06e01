// GEMM on the tensor cores of Hopper: the arithmetic of emulation/specification.md on wgmma.
#pragma once

#include <cstdint>

#include "emulation/numerics/schedule.hpp"
#include "kernels/ptx/wgmma_types.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Scales of one operand: element (row, k) uses data[row / rows * stride + k / cols].
struct ScaleGrid {
  const float* data = nullptr;  ///< nullptr: every scale is 1
  std::int64_t stride = 0;
  std::int64_t rows = 0;  ///< rows that share a scale; all if not less than the operand's rows
  std::int64_t cols = 0;  ///< elements of K that share a scale, likewise
};

/// D (m, n) = A (m, k) B (n, k)^T; `k` counts elements.
struct WgmmaGemm {
  WgmmaTypes types = WgmmaTypes::e4m3_e4m3;
  WgmmaOrders orders = WgmmaOrders::k_k;  ///< other orders only for bf16 without promotion
  bool promoted = false;  ///< adds chains of `chunk` elements in FP32, with scales by `order`
  numerics::ScaleOrder order = numerics::ScaleOrder::epilogue;
  std::int64_t m = 0, n = 0, k = 0;
  /// (m, k), or with contiguous rows (k, m); lines are 16-byte aligned and a_stride elements apart.
  const void* a = nullptr;
  const void* b = nullptr;
  std::int64_t a_stride = 0, b_stride = 0;
  std::int64_t chunk = 0;   ///< K of a promoted chain, a multiple of an instruction's K
  std::int64_t splits = 1;  ///< number of ranges of K; all but the last have length `range`
  std::int64_t range = 0;
  ScaleGrid scale_a, scale_b;  ///< for the promotion step; for the epilogue if the step uses none
  numerics::Epilogue epilogue;
  const void* bias = nullptr;  ///< (n), or nullptr
  bool bias_bf16 = false;
  void* d = nullptr;  ///< (m, n), bf16 or f32 by epilogue.output; read if epilogue.beta is not 0
  std::int64_t d_stride = 0;
  float* memory = nullptr;  ///< wgmma_workspace bytes, 16-byte aligned
};

void gemm_wgmma(Context& context, const WgmmaGemm& gemm);

/// Returns the size in bytes of the device memory that a GEMM needs: partial sums if K is
/// split, scales inside the sum along K in the order in which the kernel reads them, and sums
/// for the stream-K hand-over.
std::size_t wgmma_workspace(const Context& context, const WgmmaGemm& gemm);

}  // namespace fp8lab::cuda
