#include "emulation/cpu/attention/bf16_chain.hpp"

#include <algorithm>
#include <cstddef>

#include "emulation/base/error.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kGroupBytes = wide_group_bytes(kBf16Group);

/// Returns the bytes of the first `k` of a panel, in whole groups.
std::int64_t panel_bytes(std::int64_t k) {
  const std::int64_t groups = (k + kBf16Group - 1) / kBf16Group;
  return groups * gemm_kernels().bf16_columns * wide_panel_bytes(kBf16Group);
}

}  // namespace

void Bf16Panel::pack(const Bf16Matrix& source, std::int64_t k, std::int64_t n) {
  const GemmKernels& kernels = gemm_kernels();
  k_ = k;
  n_ = n;
  const std::int64_t width = kernels.bf16_columns;
  const std::int64_t bytes = panel_bytes(k);
  const std::int64_t panels = (n + width - 1) / width;
  auto* out = memory_.reserve_as<std::byte>(static_cast<std::size_t>(panels * bytes));
  // The packing kernel expects the panel's columns as rows of its source.
  const Bf16Source columns{source.data, source.col_stride, source.row_stride};
  for (std::int64_t p = 0; p < panels; ++p) {
    kernels.pack_bf16_panel(&columns, p * width, n, k, out + p * bytes);
  }
}

void Bf16Chain::multiply(const Bf16Matrix& a, std::int64_t m, const Bf16Panel& b,
                         std::int64_t k_first, std::int64_t k_count, std::int64_t n_first,
                         std::int64_t n_count, float* c, std::int64_t ldc) {
  FP8LAB_ASSERT(k_first >= 0 && k_first % kBf16Group == 0 && k_first + k_count <= b.k_);
  FP8LAB_ASSERT(n_first >= 0 && n_first + n_count <= b.n_);
  if (m == 0 || n_count == 0 || k_count == 0) return;
  const GemmKernels& kernels = gemm_kernels();
  const std::int64_t width = kernels.bf16_columns;
  const std::int64_t groups = (k_count + kBf16Group - 1) / kBf16Group;
  const std::int64_t group_bytes = m * kGroupBytes;
  auto* rows = packed_a_.reserve_as<std::byte>(static_cast<std::size_t>(groups * group_bytes));
  const Bf16Source source{a.data, a.row_stride, a.col_stride};
  for (std::int64_t i = 0; i < m; ++i) {
    kernels.pack_bf16_row(&source, i, k_count, rows + i * kGroupBytes, group_bytes);
  }
  float* accumulators = tile_.reserve_as<float>(static_cast<std::size_t>(m * width));
  std::fill_n(accumulators, m * width, 0.0f);

  const TowardZero rounding;
  for (std::int64_t p = n_first / width; p * width < n_first + n_count; ++p) {
    ChainTile tile{};
    tile.first_column = std::max<std::int64_t>(n_first - p * width, 0);
    tile.last_column = std::min(n_first + n_count - p * width, width);
    const std::int64_t columns = tile.last_column - tile.first_column;
    float* c_panel = c + (p * width + tile.first_column - n_first);
    float* inside = accumulators + tile.first_column;
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy_n(c_panel + i * ldc, columns, inside + i * width);
    }
    tile.a = rows;
    tile.a_row_bytes = kGroupBytes;
    tile.a_group_bytes = group_bytes;
    tile.rows = m;
    tile.b = static_cast<const std::byte*>(b.memory_.data()) + p * panel_bytes(b.k_) +
             panel_bytes(k_first);
    tile.k = k_count;
    tile.c = accumulators;
    tile.start = c_panel;
    tile.start_stride = ldc;
    kernels.chain(ChainKind::wide_16, tile);
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy_n(inside + i * width, columns, c_panel + i * ldc);
    }
  }
}

}  // namespace fp8lab::cpu
