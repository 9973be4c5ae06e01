#include "emulation/cpu/attention/fp8_chain.hpp"

#include <algorithm>
#include <cstddef>

#include "emulation/base/error.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kGroupBytes = kFp8Group * kFp8ProductBytes;

std::int64_t groups_of(std::int64_t k) { return (k + kFp8Group - 1) / kFp8Group; }

/// Returns the bytes of the first `k` of a panel, in whole groups.
std::int64_t panel_bytes(std::int64_t k) {
  return groups_of(k) * kFp8Group * gemm_kernels().fp8_columns * kFp8PanelBytes;
}

/// Returns rows of `length` codes that are contiguous: those of `source`, or a copy in `memory`.
Fp8Source contiguous_rows(const Fp8Matrix& source, std::int64_t rows, std::int64_t length,
                          AlignedBuffer& memory) {
  const Fp8Format format = source.is_e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
  if (source.col_stride == 1) return {source.data, source.row_stride, format};
  auto* copy = memory.reserve_as<std::uint8_t>(static_cast<std::size_t>(rows * length));
  for (std::int64_t j = 0; j < length; ++j) {
    const std::uint8_t* column = source.data + j * source.col_stride;
    for (std::int64_t i = 0; i < rows; ++i) copy[i * length + j] = column[i * source.row_stride];
  }
  return {copy, length, format};
}

}  // namespace

void Fp8Panel::pack(const Fp8Matrix& source, std::int64_t k, std::int64_t n) {
  const GemmKernels& kernels = gemm_kernels();
  k_ = k;
  n_ = n;
  const std::int64_t width = kernels.fp8_columns;
  const std::int64_t bytes = panel_bytes(k);
  const std::int64_t panels = (n + width - 1) / width;
  auto* out = memory_.reserve_as<std::byte>(static_cast<std::size_t>(panels * bytes));
  // The packing kernel expects the panel's columns as rows of its source.
  const Fp8Source columns = contiguous_rows(
      {source.data, source.col_stride, source.row_stride, source.is_e5m2}, n, k, columns_);
  for (std::int64_t p = 0; p < panels; ++p) {
    kernels.pack_fp8_panel(&columns, p * width, n, k, out + p * bytes);
  }
}

void Fp8Chain::multiply(const Fp8Matrix& a, std::int64_t m, const Fp8Panel& b, std::int64_t k_first,
                        std::int64_t k_count, std::int64_t n_first, std::int64_t n_count, float* c,
                        std::int64_t ldc) {
  FP8LAB_ASSERT(k_first >= 0 && k_first % kFp8Group == 0 && k_first + k_count <= b.k_);
  FP8LAB_ASSERT(n_first >= 0 && n_first + n_count <= b.n_);
  if (m == 0 || n_count == 0 || k_count == 0) return;
  const GemmKernels& kernels = gemm_kernels();
  const std::int64_t width = kernels.fp8_columns;
  const std::int64_t group_bytes = m * kGroupBytes;
  auto* rows =
      packed_a_.reserve_as<std::byte>(static_cast<std::size_t>(groups_of(k_count) * group_bytes));
  const Fp8Source source = contiguous_rows(a, m, k_count, rows_);
  for (std::int64_t i = 0; i < m; ++i) {
    kernels.pack_fp8_row(&source, i, k_count, kFp8Group, rows + i * kGroupBytes, group_bytes);
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
             k_first * width * kFp8PanelBytes;
    tile.k = k_count;
    tile.c = accumulators;
    tile.start = c_panel;
    tile.start_stride = ldc;
    kernels.chain(ChainKind::fp8_32, tile);
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy_n(inside + i * width, columns, c_panel + i * ldc);
    }
  }
}

}  // namespace fp8lab::cpu
