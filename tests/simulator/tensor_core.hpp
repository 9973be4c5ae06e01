// The tensor core of a warpgroup and of a warp, by the group model of emulation/numerics/mma.hpp:
// PTX ISA 8.x, sections "wgmma" and "mma".
#pragma once

#include <cstdint>

#include "kernels/ptx/wgmma_types.hpp"

namespace fp8lab::simulator {

/// One wgmma of 64 x n: 32 bytes of K. Operands by descriptors, A perhaps from registers.
struct Product {
  cuda::WgmmaTypes types;
  int n;
  bool add;                   ///< to the accumulators, which else count as zero
  bool a_by_rows, b_by_rows;  ///< contiguous along M or N, not along K (bf16)
  std::uint64_t a, b;         ///< descriptors
  bool a_in_registers = false;
};

/// Issues a product of all threads of the warpgroup. `d`: the caller's n / 2 accumulators of 32
/// bits, spoilt until the wait for them. `a`: its four registers of A, copied now, or null.
void issue(const Product& product, void* d, const std::uint32_t* a);
/// Ends a group of products, and waits until at most `pending` groups are left.
void commit_products();
void wait_for_products(int pending);

/// mma.sync of kernels/ptx/mma_tile.cuh as Hopper executes it, by all lanes of the warp. `types`:
/// an MmaTypes, as a number, since the namespace of the kernels has another name here.
void multiply_tile_in_warp(int types, const std::uint32_t* a, const std::uint32_t* b,
                           std::uint32_t* d);

/// mma.sync m16n8k16 of bf16, by all lanes of the warp.
void multiply_in_warp(const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, float* d);
/// ldmatrix.x4 by all lanes of the warp.
void load_matrices(const std::uint16_t* row, std::uint32_t* x, bool transposed);

}  // namespace fp8lab::simulator
