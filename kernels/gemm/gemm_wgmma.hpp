// GEMM on the tensor cores of Hopper: the arithmetic of emulation/specification.md with wgmma.
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
  std::int64_t rows = 0;  ///< rows that share a scale; at least the operand's rows: all of them
  std::int64_t cols = 0;  ///< elements of K that share a scale, likewise
};

/// D (m, n) = A (m, k) B (n, k)^T; `k` counts elements.
struct WgmmaGemm {
  WgmmaTypes types = WgmmaTypes::e4m3_e4m3;
  WgmmaOrders orders = WgmmaOrders::k_k;  ///< others for bf16 that is not promoted
  bool promoted = false;  ///< chains of `chunk` elements are added in FP32, with scales by `order`
  numerics::ScaleOrder order = numerics::ScaleOrder::epilogue;
  std::int64_t m = 0, n = 0, k = 0;
  /// (m, k), or by rows (k, m): lines 16-byte aligned, a_stride elements apart.
  const void* a = nullptr;
  const void* b = nullptr;
  std::int64_t a_stride = 0, b_stride = 0;
  std::int64_t chunk = 0;   ///< K of one chain, a multiple of one instruction's; unused for `none`
  std::int64_t splits = 1;  ///< ranges of K, each but the last `range` long
  std::int64_t range = 0;
  ScaleGrid scale_a, scale_b;  ///< for `step`, or for the epilogue where the step takes none
  numerics::Epilogue epilogue;
  const void* bias = nullptr;  ///< (n), or none
  bool bias_bf16 = false;
  void* d = nullptr;  ///< (m, n) bf16 or f32 by epilogue.output; read when epilogue.beta is not 0
  std::int64_t d_stride = 0;
  float* memory = nullptr;  ///< wgmma_workspace bytes, 16-byte aligned
};

void gemm_wgmma(Context& context, const WgmmaGemm& gemm);

/// Bytes of device memory that a GEMM needs: partial sums when K is split, scales inside the sum
/// along K in the order in which the kernel reads them, and sums that blocks hand to each other.
std::size_t wgmma_workspace(const Context& context, const WgmmaGemm& gemm);

}  // namespace fp8lab::cuda
