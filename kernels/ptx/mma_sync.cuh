// PTX wrappers of the warp-wide BF16 tensor-core instructions. Precondition: every
// lane of the warp calls them.
#pragma once

#include <cstdint>

namespace fp8lab::cuda {

/// ldmatrix.x4: loads four 8x8 matrices of 16-bit elements from shared memory. Lane 8 i + r passes
/// the address of row r of matrix i, 16-byte aligned; lane 4 g + t receives in x[i] the elements
/// (g, 2 t), lower half, and (g, 2 t + 1) of matrix i (PTX ISA, ldmatrix).
__device__ inline void load_matrices(const std::uint16_t* row, std::uint32_t (&x)[4]) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

/// As load_matrices, each matrix transposed: lane 4 g + t receives (2 t, g) and (2 t + 1, g).
__device__ inline void load_matrices_transposed(const std::uint16_t* row, std::uint32_t (&x)[4]) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

/// mma m16n8k16, bf16 operands, f32 accumulator: d (16, 8) = group(a (16, 16), b (16, 8), d), one
/// group of sm90_bf16 for each element (emulation/specification.md, "Tensor cores"). Registers of
/// lane 4 g + t: d[0..1] are (g, 2 t + 0..1), d[2..3] the same of row g + 8;
/// a holds (g, 2 t + 0..1), (g + 8, ..), (g, 2 t + 8..9), (g + 8, ..);
/// b0 holds (2 t + 0..1, g), b1 (2 t + 8..9, g).
__device__ inline void multiply_group(const std::uint32_t (&a)[4], std::uint32_t b0,
                                      std::uint32_t b1, float (&d)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fp8lab::cuda
