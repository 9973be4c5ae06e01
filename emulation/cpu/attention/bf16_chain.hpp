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

/// The right operand (k, n) of chains, copied once into the order that the kernels of the active
/// SIMD target read. A panel keeps its memory between calls of `pack` and must not be used after
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

/// Multiplies on the calling thread with that thread's scratch memory. Does not allocate once it
/// has seen the largest size. May be called inside an OpenMP parallel region.
class Bf16Chain {
 public:
  /// Computes c[i][j] = chain(c[i][j]; a[i][l], b(k_first + l, n_first + j), l = 0 .. k_count) for
  /// i < m and j < n_count. Groups are 16 consecutive l from l = 0 on, the last one may be short;
  /// each is numerics::fused_group with kSm90Bf16F32 (specification.md, "The group"). `c` points to
  /// the first of the n_count columns, with rows `ldc` elements apart; fill it with +0 to start a
  /// new sum. Precondition: k_first is a multiple of 16. k_count = 0 leaves c unchanged.
  void multiply(const Bf16Matrix& a, std::int64_t m, const Bf16Panel& b, std::int64_t k_first,
                std::int64_t k_count, std::int64_t n_first, std::int64_t n_count, float* c,
                std::int64_t ldc);

 private:
  AlignedBuffer packed_a_;
  AlignedBuffer tile_;
};

}  // namespace fp8lab::cpu
