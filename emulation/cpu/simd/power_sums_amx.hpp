// Finds the largest exponents of the products of E4M3 groups with AMX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/chain_lanes_avx512.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Configures the tile registers of AMX, all with 16 rows of 64 bytes, during its lifetime.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    __asm__ volatile("" ::: "memory");  // GCC 12: the intrinsic does not declare all its inputs
    _tile_loadconfig(&configuration);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// Processes several groups at a time, because the first multiplication after a pause of the unit
/// waits for some 700 cycles, and the multiply-adds after the last one run at half speed for a
/// while. Precondition: a TileRegisters exists.
class PowerSums {
 public:
  /// Multiplies one group of `rows` <= kE4m3Rows rows of powers, `row_bytes` apart, by a
  /// panel of powers (4 blocks of 16 columns, pairs of k, columns, 2). Writes the common
  /// exponents of the products to `codes` (kE4m3Rows, 64), columns in lane order. Reads and
  /// writes up to 15 rows more.
  void find(const std::byte* left, std::int64_t row_bytes, std::int64_t rows,
            const std::byte* right, std::byte* codes) {
    _tile_loadd(4, right, kTileRow);
    _tile_loadd(5, right + kTile, kTileRow);
    _tile_loadd(6, right + 2 * kTile, kTileRow);
    _tile_loadd(7, right + 3 * kTile, kTileRow);
    const std::int64_t blocks = (rows + kTileRows - 1) / kTileRows;
    for (std::int64_t i = 0; i <= blocks; ++i) {  // sums are converted one block later
      if (i < blocks) multiply(left + i * kTileRows * row_bytes, row_bytes, sums_[i % 2]);
      if (i > 0) convert(sums_[(i - 1) % 2], codes + (i - 1) * kTile);
    }
  }

 private:
  static constexpr std::int64_t kTileRows = 16, kTileRow = 64, kTile = kTileRows * kTileRow;
  static constexpr std::int64_t kColumns = 64;

  static void multiply(const std::byte* left, std::int64_t row_bytes, float* sums) {
    constexpr int kStride = kColumns * sizeof(float);
    _tile_loadd(3, left, row_bytes);
    _tile_zero(0);
    _tile_dpbf16ps(0, 3, 4);
    _tile_zero(1);
    _tile_dpbf16ps(1, 3, 5);
    _tile_stored(0, sums, kStride);
    _tile_zero(2);
    _tile_dpbf16ps(2, 3, 6);
    _tile_stored(1, sums + 16, kStride);
    _tile_zero(0);
    _tile_dpbf16ps(0, 3, 7);
    _tile_stored(2, sums + 32, kStride);
    _tile_stored(0, sums + 48, kStride);
  }

  static void convert(const float* sums, std::byte* codes) {
    // Keeps the upper five of seven exponent bits and adds 112: the highest bit becomes bit 7, and
    // its complement bits 4 to 6.
    const __m512i shift = _mm512_set1_epi64(0x0408102040404040);
    static_assert(Fp8Codes::kExponentBias - Fp8Codes::kSumField == 0x70);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      const __m512i fields = Fp8Lanes::fields<24>(sums + r * kColumns);
      _mm512_store_si512(codes + r * kTileRow, _mm512_gf2p8affine_epi64_epi8(fields, shift, 0x70));
    }
  }

  alignas(64) float sums_[2][kTileRows * kColumns];
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
