// The seam between the choice of a wgmma kernel and the files that hold the kernels of one pair of
// operand types each.
#pragma once

#include <cuda.h>

#include "kernels/gemm/gemm_problem.cuh"

namespace fp8lab::cuda {

/// Whether a pair of types has more than the plainest kernels; E5M2 by E5M2 trains nothing.
constexpr bool has_choice(WgmmaTypes types) { return types != WgmmaTypes::e5m2_e5m2; }

/// Whether an order multiplies every element of a chain by a scale of its own column: the wider its
/// tiles along M, the fewer of these a block reads.
constexpr bool multiplies_columns(numerics::ScaleOrder order) {
  return order == numerics::ScaleOrder::b_then_a || order == numerics::ScaleOrder::a_then_b;
}

/// Launches the kernel for gemm.order and problem.tiling, one of those that choose_tiles may take.
template <WgmmaTypes kTypes>
void launch_types(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Launches a kernel of one chain over the whole range for s8 operands, or for bf16 operands in
/// these orders.
template <WgmmaTypes kTypes, WgmmaOrders kOrders>
void launch_one_chain(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Launches a kernel for bf16 operands with scales inside the sum, by gemm.order: chains of any
/// length.
void launch_scaled_bf16(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Tensor map of an operand (rows, k) of `bytes` per element: boxes of 128 bytes of K by `box_rows`
/// rows in the 128-byte swizzle.
CUtensorMap operand_map(const void* data, int bytes, std::int64_t rows, std::int64_t k,
                        std::int64_t stride, int box_rows);
/// Tensor map of a bf16 operand stored as (k, rows): boxes of one k's 64 rows, 64 of them, in the
/// 128-byte swizzle.
CUtensorMap row_block_map(const void* data, std::int64_t rows, std::int64_t k, std::int64_t stride);
/// Tensor map of scales in the order of Problem, `columns` of them for each chunk of K: boxes of
/// `box` scales of one chunk.
CUtensorMap scale_map(const Problem& problem, const float* scales, int columns, int box);
/// Tensor map of a bf16 d: boxes of 64 rows by 64 or 32 columns, swizzled by their width. Empty
/// unless problem.boxed.
CUtensorMap output_map(const Problem& problem, int columns);

}  // namespace fp8lab::cuda
