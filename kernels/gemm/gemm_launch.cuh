// Interface between the choice of a wgmma kernel and the source files with the kernels, one file
// for each pair of operand types.
#pragma once

#include <cuda.h>

#include "kernels/gemm/gemm_problem.cuh"

namespace fp8lab::cuda {

/// True if a pair of types has more than the basic kernels. E5M2 by E5M2 has
/// not, as no training uses it.
constexpr bool has_choice(WgmmaTypes types) { return types != WgmmaTypes::e5m2_e5m2; }

/// True if an order multiplies every element of a chain by a scale of its own column. The larger
/// the tiles along M, the fewer such scales a block reads.
constexpr bool multiplies_columns(numerics::ScaleOrder order) {
  return order == numerics::ScaleOrder::b_then_a || order == numerics::ScaleOrder::a_then_b;
}

/// Launches the kernel for gemm.order and problem.tiling, which must be one
/// that choose_tiles can choose.
template <WgmmaTypes kTypes>
void launch_types(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Launches a kernel with one chain over the whole range, for s8 operands, or for bf16
/// operands in these orders.
template <WgmmaTypes kTypes, WgmmaOrders kOrders>
void launch_one_chain(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Launches a kernel for bf16 operands with scales inside the sum by gemm.order,
/// for chains of any length.
void launch_scaled_bf16(Context& context, const WgmmaGemm& gemm, const Problem& problem);

/// Returns the tensor map of an operand (rows, k) with `bytes` per element: boxes of 128 bytes of K
/// by `box_rows` rows in the 128-byte swizzle.
CUtensorMap operand_map(const void* data, int bytes, std::int64_t rows, std::int64_t k,
                        std::int64_t stride, int box_rows);
/// Returns the tensor map of a bf16 operand stored as (k, rows): boxes of 64 values of k by 64
/// rows, in the 128-byte swizzle.
CUtensorMap row_block_map(const void* data, std::int64_t rows, std::int64_t k, std::int64_t stride);
/// Returns the tensor map of scales in the order of Problem, with `columns` of them for each chunk
/// of K: boxes of `box` scales of one chunk.
CUtensorMap scale_map(const Problem& problem, const float* scales, int columns, int box);
/// Returns the tensor map of a bf16 d: boxes of 64 rows by 64 or 32 columns, swizzled by their
/// width. Returns an empty map unless problem.boxed.
CUtensorMap output_map(const Problem& problem, int columns);

}  // namespace fp8lab::cuda
