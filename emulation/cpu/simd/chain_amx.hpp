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

/// Finds the common exponents of groups from `first` on.
template <class L>
void look_ahead(const ChainTile& tile, std::int64_t first) {
  const std::int64_t groups = (tile.k + tile.k_behind + L::kGroup - 1) / L::kGroup;
  const TileRegisters registers;
  PowerSums sums;
  ExponentsAhead& ahead = *tile.ahead;
  ahead.found = std::min(groups - first, ExponentsAhead::kGroups);
  ahead.used = 0;
  for (std::int64_t i = 0; i < ahead.found; ++i) {
    const std::byte* a = tile.a + (first + i) * tile.a_group_bytes;
    const std::byte* b = tile.b + (first + i) * L::kPanelGroup;
    sums.find(a + L::kLeftPowers, tile.a_row_bytes, tile.rows, b + L::kRightPowers,
              ahead.codes + i * ExponentsAhead::kGroupBytes);
  }
}

/// Runs the chain of a tile; `model` defines the sum of each group.
template <class L>
void run_amx_chain(const ChainTile& tile, const numerics::GroupModel& model) {
  for (std::int64_t group = 0; group * L::kGroup < tile.k; ++group) {
    ExponentsAhead& ahead = *tile.ahead;
    if (ahead.used == ahead.found) look_ahead<L>(tile, group);
    run_tile_group<L>(tile, group, ahead.codes + ahead.used++ * ExponentsAhead::kGroupBytes);
  }
  finish_chain<L>(tile, model);
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
