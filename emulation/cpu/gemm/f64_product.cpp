#include "emulation/cpu/gemm/f64_product.hpp"

#include <algorithm>
#include <cstddef>

#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {
namespace {

// Sizes of blocks; none of them changes a bit.
constexpr std::int64_t kRowBlock = 48;    // of A, a multiple of the kernels' rows
constexpr std::int64_t kKBlock = 512;     // a packed panel of it stays in the L2
constexpr std::int64_t kPanelBlock = 32;  // panels of B that are packed at a time

/// One thread's memory.
struct Scratch {
  AlignedBuffer rows, sums;
};

/// A block of K of some rows of A, and a packed panel of B.
struct Tile {
  const double* rows;
  std::int64_t count, k;
  const std::byte* panel;
  bool from_zero;
};

/// Adds the products of `tile` to d (tile.count, columns), rows `stride` apart.
void add_products(const GemmKernels& kernels, const Tile& tile, double* d, std::int64_t columns,
                  std::int64_t stride, double* sums) {
  const std::int64_t width = kernels.f32_columns;
  for (std::int64_t r = 0; r < tile.count && !tile.from_zero; ++r) {
    std::copy_n(d + r * stride, columns, sums + r * width);
    std::fill_n(sums + r * width + columns, width - columns, 0.0);
  }
  ChainTile chain{};
  chain.a = reinterpret_cast<const std::byte*>(tile.rows);
  chain.a_row_bytes = tile.k * static_cast<std::int64_t>(sizeof(double));
  chain.rows = tile.count;
  chain.b = tile.panel;
  chain.k = tile.k;
  chain.from_zero = tile.from_zero;
  kernels.f64_chain(&chain, sums);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    std::copy_n(sums + r * width, columns, d + r * stride);
  }
}

}  // namespace

void f64_product(const float* a, std::int64_t rows_a, const float* b, std::int64_t rows_b,
                 std::int64_t k, double* d) {
  if (k == 0) std::fill_n(d, rows_a * rows_b, 0.0);
  const GemmKernels& kernels = gemm_kernels();
  const std::int64_t width = kernels.f32_columns, block = kPanelBlock * width;
  const std::int64_t row_blocks = (rows_a + kRowBlock - 1) / kRowBlock;
  const std::int64_t panel_bytes = kKBlock * width * static_cast<std::int64_t>(sizeof(double));
  AlignedBuffer packed;
  auto* const panels =
      packed.reserve_as<std::byte>(static_cast<std::size_t>(kPanelBlock * panel_bytes));
  for (std::int64_t first = 0; first < rows_b; first += block) {
    const std::int64_t columns = std::min(block, rows_b - first);
    const std::int64_t count = (columns + width - 1) / width;
    for (std::int64_t begin = 0; begin < k; begin += kKBlock) {
      const std::int64_t length = std::min(kKBlock, k - begin);
      const F32Source source{b + begin, k};
#pragma omp parallel
      {
        Scratch scratch;
        auto* const rows =
            scratch.rows.reserve_as<double>(static_cast<std::size_t>(kRowBlock * length));
        auto* const sums =
            scratch.sums.reserve_as<double>(static_cast<std::size_t>(kRowBlock * width));
#pragma omp for schedule(static)
        for (std::int64_t p = 0; p < count; ++p) {
          kernels.pack_f64_panel(&source, first + p * width, rows_b, length,
                                 panels + p * panel_bytes);
        }
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < row_blocks; ++i) {
          const std::int64_t row = i * kRowBlock;
          const std::int64_t height = std::min(kRowBlock, rows_a - row);
          for (std::int64_t r = 0; r < height; ++r) {
            std::copy_n(a + (row + r) * k + begin, length, rows + r * length);
          }
          for (std::int64_t p = 0; p < count; ++p) {
            const std::int64_t column = first + p * width;
            add_products(kernels, {rows, height, length, panels + p * panel_bytes, begin == 0},
                         d + row * rows_b + column, std::min(width, rows_b - column), rows_b, sums);
          }
        }
      }
    }
  }
}

}  // namespace fp8lab::cpu
