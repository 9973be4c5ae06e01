// Chains of the sm_90 FP8 tensor core on small tiles.
#pragma once

#include <cstdint>

#include "emulation/cpu/simd/aligned_buffer.hpp"

namespace fp8lab::cpu {

/// A matrix of FP8 codes with any strides, in elements: element (i, j) is
/// data[i * row_stride + j * col_stride]. Swap the strides for the transpose.
struct Fp8Matrix {
  const std::uint8_t* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
  bool is_e5m2 = false;  ///< else e4m3fn
};

/// The right operand (k, n) of chains, as Bf16Panel.
class Fp8Panel {
 public:
  void pack(const Fp8Matrix& source, std::int64_t k, std::int64_t n);

  std::int64_t k() const { return k_; }
  std::int64_t n() const { return n_; }

 private:
  friend class Fp8Chain;
  AlignedBuffer memory_, columns_;
  std::int64_t k_ = 0;
  std::int64_t n_ = 0;
};

/// Multiplies on the calling thread with that thread's scratch memory, as Bf16Chain.
class Fp8Chain {
 public:
  /// Computes c[i][j] = chain(c[i][j]; a[i][l], b(k_first + l, n_first + j), l = 0 .. k_count) for
  /// i < m and j < n_count. Groups are 32 consecutive l from l = 0 on, the last one may be short;
  /// each is numerics::fused_group with kSm90WgmmaFp8F32. Precondition: k_first is a multiple of
  /// 32. k_count = 0 leaves c unchanged.
  void multiply(const Fp8Matrix& a, std::int64_t m, const Fp8Panel& b, std::int64_t k_first,
                std::int64_t k_count, std::int64_t n_first, std::int64_t n_count, float* c,
                std::int64_t ldc);

 private:
  AlignedBuffer rows_, packed_a_, tile_;
};

}  // namespace fp8lab::cpu
