// Chains of the sm_90 BF16 tensor core on small tiles, for attention and for whole GEMMs.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cpu/simd/aligned_buffer.hpp"

namespace fp8lab::cpu {

/// A bf16 matrix with any strides, in elements: element (i, j) is
/// data[i * row_stride + j * col_stride]. Swap the strides for the transpose.
struct Bf16Matrix {
  const std::uint16_t* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

/// The right operand (k, n) of chains, copied once into the order the kernels of the active SIMD
/// target read. Memory is kept between calls of `pack`; a panel is not to be used after
/// set_active_target. One thread writes it, any number may read it.
class Bf16Panel {
 public:
  void pack(const Bf16Matrix& source, std::int64_t k, std::int64_t n);

  std::int64_t k() const { return k_; }
  std::int64_t n() const { return n_; }

 private:
  friend class Bf16Chain;
  AlignedBuffer memory_;
  std::int64_t k_ = 0;
  std::int64_t n_ = 0;
};

/// Multiplies on the calling thread, with that thread's scratch memory; no allocation once the
/// largest size was seen. Callable inside an OpenMP parallel region.
class Bf16Chain {
 public:
  /// c[i][j] = chain(c[i][j]; a[i][l], b(k_first + l, n_first + j), l = 0 .. k_count) for i < m and
  /// j < n_count: groups of 16 consecutive l from l = 0 on, the last one short, each of them
  /// numerics::fused_group with kSm90Bf16F32 (specification.md, "The group"). `c` points to the
  /// first of the n_count columns, rows `ldc` elements apart; fill it with +0 to start anew.
  /// k_first is a multiple of 16. k_count = 0 leaves c unchanged.
  void multiply(const Bf16Matrix& a, std::int64_t m, const Bf16Panel& b, std::int64_t k_first,
                std::int64_t k_count, std::int64_t n_first, std::int64_t n_count, float* c,
                std::int64_t ldc);

 private:
  AlignedBuffer packed_a_;
  AlignedBuffer tile_;
};

}  // namespace fp8lab::cpu
