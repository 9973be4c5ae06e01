// What the GEMMs by the scalar definition share: scales of an element, and its epilogue.
#pragma once

#include "kernels/gemm/gemm_scalar.hpp"

namespace fp8lab::cuda {

/// Returns the scales of a row of an operand along K; `one`, which holds 1, if it has none.
__device__ inline const float* row_scales(const ScaleGrid& grid, std::int64_t row,
                                          const float* one) {
  return grid.data == nullptr ? one : grid.data + row / grid.rows * grid.stride;
}

/// Applies the epilogue to an accumulator, and stores the element; sa and sb are its scales.
__device__ inline void store_element(const ScalarGemm& gemm, std::int64_t row, std::int64_t column,
                                     float acc, float sa, float sb) {
  const std::int64_t at = row * gemm.d_stride + column;
  const float c = gemm.epilogue.beta == 0.0f ? 0.0f : static_cast<const float*>(gemm.d)[at];
  float bias = 0.0f;
  if (gemm.bias != nullptr) {
    bias = gemm.bias_bf16
               ? numerics::from_bf16(static_cast<const std::uint16_t*>(gemm.bias)[column])
               : static_cast<const float*>(gemm.bias)[column];
  }
  const std::uint32_t code = numerics::finish_element(gemm.epilogue, acc, sa, sb, c,
                                                      gemm.bias == nullptr ? nullptr : &bias);
  if (gemm.epilogue.output.bits() == 16) {
    static_cast<std::uint16_t*>(gemm.d)[at] = static_cast<std::uint16_t>(code);
  } else {
    static_cast<std::uint32_t*>(gemm.d)[at] = code;
  }
}

}  // namespace fp8lab::cuda
