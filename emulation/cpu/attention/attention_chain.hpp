// Chains of the attention definition (operations.hpp) on tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cpu/attention/attention_tiles.hpp"
#include "emulation/cpu/attention/bf16_chain.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"

namespace fp8lab::cpu {

/// ChainTile: the right operand of chains, (k, n), copied into the order that the multiplier
/// reads. Chain: the multiplier, with the scratch memory of one thread. Each has one
/// specialization per storage type.
template <class T>
class ChainTile;
template <class T>
class Chain;

template <>
class ChainTile<float> {
 public:
  void load(const Operand<float>& source, std::int64_t k, std::int64_t n) {
    n_ = n;
    values_.resize(static_cast<std::size_t>(k * n));
    float* out = values_.data();
    for (std::int64_t i = 0; i < k; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        *out++ = source.data[i * source.row_stride + j * source.col_stride];
      }
    }
  }
  const float* row(std::int64_t i) const { return values_.data() + i * n_; }
  std::int64_t n() const { return n_; }

 private:
  std::vector<float> values_;
  std::int64_t n_ = 0;
};

template <>
class Chain<float> {
 public:
  /// Computes c (m, columns) = chain(c; a, b) over the summed indices `range` of b. a starts at the
  /// first of these indices, and c at the first of `columns`, with `ldc` elements per row.
  void multiply(const Operand<float>& a, std::int64_t m, const ChainTile<float>& b,
                const Range& range, const Range& columns, float* c, std::int64_t ldc) {
    pointwise_kernels().ideal_chain(a.data, a.row_stride, a.col_stride,
                                    b.row(range.first) + columns.first, b.n(), m, columns.count(),
                                    range.count(), c, ldc);
  }
};

template <>
class ChainTile<std::uint16_t> {
 public:
  void load(const Operand<std::uint16_t>& source, std::int64_t k, std::int64_t n) {
    panel_.pack({source.data, source.row_stride, source.col_stride}, k, n);
  }
  const Bf16Panel& panel() const { return panel_; }

 private:
  Bf16Panel panel_;
};

template <>
class Chain<std::uint16_t> {
 public:
  /// As Chain<float>::multiply, on the BF16 tensor core.
  void multiply(const Operand<std::uint16_t>& a, std::int64_t m, const ChainTile<std::uint16_t>& b,
                const Range& range, const Range& columns, float* c, std::int64_t ldc) {
    chain_.multiply({a.data, a.row_stride, a.col_stride}, m, b.panel(), range.first, range.count(),
                    columns.first, columns.count(), c, ldc);
  }

 private:
  Bf16Chain chain_;
};

}  // namespace fp8lab::cpu
