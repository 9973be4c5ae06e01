// Chains of groups of E4M3 products with common exponents by AMX; see gemm_kernels.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "emulation/cpu/simd/chain_group.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/cpu/simd/power_sums_amx.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using E4m3Layout =
    Layout<Fp8Lanes, kFp8Group, ChainOutput::f32, Fp8Codes::kFloor - Fp8Codes::kExponentBias, true>;
static_assert(E4m3Layout::kGroupBytes == kFp8Group * kE4m3ProductBytes);
static_assert(E4m3Layout::kPanelGroup == kFp8Group * E4m3Layout::kColumns * kE4m3PanelBytes);

/// All groups of `rows` <= PowerSums::kRows rows from row `first` on.
template <class L>
void run_strip(const ChainTile& tile, std::int64_t first, std::int64_t rows, PowerSums& sums) {
  const std::int64_t groups = (tile.k + L::kGroup - 1) / L::kGroup;
  for (std::int64_t begin = 0; begin < groups; begin += PowerSums::kGroups) {
    const std::int64_t count = std::min(groups - begin, PowerSums::kGroups);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::byte* a = tile.a + (begin + i) * tile.a_group_bytes + first * tile.a_row_bytes;
      const std::byte* b = tile.b + (begin + i) * L::kPanelGroup;
      sums.find(i, a + L::kLeftPowers, tile.a_row_bytes, rows, b + L::kRightPowers);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      run_strip_group<L>(tile, begin + i, first, rows, sums.exponents(i));
    }
  }
}

/// The chain of a tile, every group summed as `model` says.
template <class L>
void run_amx_chain(const ChainTile& tile, const numerics::GroupModel& model) {
  {
    const TileRegisters registers;
    PowerSums sums;
    for (std::int64_t first = 0; first < tile.rows; first += PowerSums::kRows) {
      run_strip<L>(tile, first, std::min(tile.rows - first, PowerSums::kRows), sums);
    }
  }
  finish_chain<L>(tile, model);
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
