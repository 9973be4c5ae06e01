// Chains of fused groups over vector lanes; see gemm_kernels.hpp for the method.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/numerics/mma.hpp"

#if defined(FP8LAB_ISA_avx512) || defined(FP8LAB_ISA_avx512_fp16)
#include "emulation/cpu/simd/chain_lanes_avx512.hpp"
#elif defined(FP8LAB_ISA_avx2)
#include "emulation/cpu/simd/chain_lanes_avx2.hpp"
#else
#include "emulation/cpu/simd/chain_lanes_portable.hpp"
#endif

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using numerics::bits_float;
using numerics::float_bits;

/// Where the parts of packed operands lie.
template <class Lanes, std::int64_t kGroupSize>
struct Layout {
  using Real = typename Lanes::Real;
  using Lane = typename Lanes::Codes::Lane;
  static constexpr int kColumns = 4 * Lanes::kFloatLanes;
  static constexpr std::int64_t kGroup = kGroupSize;

  // One group of a left-operand row.
  static constexpr std::int64_t kGaps = kGroup * std::int64_t{sizeof(Real)};
  static constexpr std::int64_t kLeftLows = kGaps + kGroup * 4;
  static constexpr std::int64_t kGroupBytes = kLeftLows + kGroup * 4;
  // One k of a right-operand panel.
  static constexpr std::int64_t kExponents = kColumns * std::int64_t{sizeof(Real)};
  static constexpr std::int64_t kRightLows = kExponents + kColumns * std::int64_t{sizeof(Lane)};
  static constexpr std::int64_t kStep = kRightLows + kColumns * std::int64_t{sizeof(Lane)};
};

using Fp8Layout = Layout<Fp8Lanes, kFp8Group>;
using Bf16Layout = Layout<Bf16Lanes, kBf16Group>;
static_assert(Fp8Layout::kGroupBytes == kFp8GroupBytes);
static_assert(Bf16Layout::kGroupBytes == kBf16GroupBytes);
static_assert(Fp8Layout::kStep == Fp8Layout::kColumns * kFp8PanelBytes);
static_assert(Bf16Layout::kStep == Bf16Layout::kColumns * kBf16PanelBytes);

inline std::uint32_t load_u32(const std::byte* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

/// One group of `count` > 0 products for kRows rows: c (kRows, W) in and out.
template <class Lanes, class L, int kRows, bool kFromZero>
[[gnu::always_inline]] inline void run_group(const std::byte* a, std::int64_t a_row_bytes,
                                             const std::byte* b, int count, float* c) {
  using Code = typename Lanes::Code;
  using Float = typename Lanes::Float;
  using Real = typename Lanes::Real;
  if (count < 1) __builtin_unreachable();

  Code top[kRows];
  for (int r = 0; r < kRows; ++r) {
    top[r] = kFromZero ? Lanes::floor()
                       : Lanes::max(Lanes::exponents(c + r * L::kColumns), Lanes::floor());
  }
  const std::byte* step = b;
#pragma GCC unroll 4
  for (int k = 0; k < count; ++k, step += L::kStep) {
    const Code exponent = Lanes::load(step + L::kExponents);
    for (int r = 0; r < kRows; ++r) {
      const Code gap = Lanes::splat(load_u32(a + r * a_row_bytes + L::kGaps + 4 * k));
      top[r] = Lanes::max(top[r], Lanes::subtract(exponent, gap));
    }
  }

  Float y[kRows][4], anchor[kRows][4];
  Code limit[kRows], counted[kRows];
  for (int r = 0; r < kRows; ++r) {
    limit[r] = Lanes::limit(top[r]);
    counted[r] = Lanes::zero();
    for (int v = 0; v < 4; ++v) {
      anchor[r][v] = Lanes::anchor(top[r], v);
      y[r][v] = kFromZero ? anchor[r][v] : Lanes::start(anchor[r][v], c + r * L::kColumns, v);
    }
  }
  step = b;
#pragma GCC unroll 4
  for (int k = 0; k < count; ++k, step += L::kStep) {
    Float values[4];
    for (int v = 0; v < 4; ++v) {
      values[v] = Lanes::load_values(step + v * std::int64_t{sizeof(Float)});
    }
    const Code low_b = Lanes::load(step + L::kRightLows);
    for (int r = 0; r < kRows; ++r) {
      const std::byte* row = a + r * a_row_bytes;
      const Float value = Lanes::splat_value(reinterpret_cast<const Real*>(row) + k);
      for (int v = 0; v < 4; ++v) y[r][v] = Lanes::multiply_add(value, values[v], y[r][v]);
      const Code low_a = Lanes::splat(load_u32(row + L::kLeftLows + 4 * k));
      counted[r] = Lanes::count(counted[r], low_a, low_b, limit[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 4; ++v) {
      Lanes::finish(y[r][v], anchor[r][v], counted[r], c + r * L::kColumns, v);
    }
  }
}

/// Part `index` of `parts` of the panel's next group into the cache: the first rows would otherwise
/// wait for it line by line.
template <class L>
inline void prefetch_part(const std::byte* next, std::int64_t index, std::int64_t parts) {
  constexpr std::int64_t kLine = 64;
  constexpr std::int64_t kLines = L::kGroup * L::kStep / kLine;
  for (std::int64_t i = kLines * index / parts; i < kLines * (index + 1) / parts; ++i) {
    __builtin_prefetch(next + i * kLine);
  }
}

/// One group of all rows of a tile; kCount products, or `count` of them for kCount = 0.
template <class Lanes, class L, bool kFromZero, int kCount>
void run_group_rows(const ChainTile& tile, std::int64_t group, int count) {
  if (kCount > 0) count = kCount;
  const std::byte* a = tile.a + group * tile.a_group_bytes;
  const std::byte* b = tile.b + group * L::kGroup * L::kStep;
  const std::int64_t pairs = tile.rows / Lanes::kRows;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t r = i * Lanes::kRows;
    prefetch_part<L>(b + L::kGroup * L::kStep, i, pairs);
    run_group<Lanes, L, Lanes::kRows, kFromZero>(a + r * tile.a_row_bytes, tile.a_row_bytes, b,
                                                 count, tile.c + r * L::kColumns);
  }
  for (std::int64_t r = pairs * Lanes::kRows; r < tile.rows; ++r) {
    run_group<Lanes, L, 1, kFromZero>(a + r * tile.a_row_bytes, tile.a_row_bytes, b, count,
                                      tile.c + r * L::kColumns);
  }
}

/// Format and model of the scalar reference for one kind of chain.
struct ScalarModel {
  numerics::GroupModel group;
  numerics::FormatSpec format_a, format_b;
};

/// Recomputes one lane with the scalar reference, from codes regained from the packed values.
template <class L>
[[gnu::noinline]] float recompute(const ChainTile& tile, const ScalarModel& model, std::int64_t row,
                                  std::int64_t column, std::uint32_t accumulator) {
  using Real = typename L::Real;
  const auto code = [](const numerics::FormatSpec& format, const std::byte* p) {
    Real value;
    std::memcpy(&value, p, sizeof value);
    return numerics::encode(format, float_bits(static_cast<float>(value)),
                            numerics::Rounding::nearest, numerics::Overflow::special);
  };
  for (std::int64_t begin = 0; begin < tile.k; begin += L::kGroup) {
    const std::byte* a = tile.a + row * tile.a_row_bytes + begin / L::kGroup * tile.a_group_bytes;
    const std::byte* b = tile.b + begin * L::kStep;
    const std::int64_t left = tile.k - begin;
    const int count = static_cast<int>(left < L::kGroup ? left : L::kGroup);
    std::uint32_t x[L::kGroup], y[L::kGroup];
    for (int k = 0; k < count; ++k) {
      x[k] = code(model.format_a, a + k * std::int64_t{sizeof(Real)});
      y[k] = code(model.format_b, b + k * L::kStep + column * std::int64_t{sizeof(Real)});
    }
    accumulator = numerics::fused_group(model.group, model.format_a, model.format_b, x, y, count,
                                        accumulator);
    if (accumulator == numerics::kF32NaN) break;  // nothing leads back from NaN
  }
  return bits_float(accumulator);
}

/// Replaces every infinity and NaN of the tile: each marks a lane whose operands, addend or sum
/// left the range of the vector arithmetic.
template <class L>
void recompute_special(const ChainTile& tile, const ScalarModel& model) {
  constexpr std::uint32_t kExponentMask = 0x7F800000u;
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < tile.rows * L::kColumns; ++i) {
    const auto magnitude = static_cast<std::int32_t>(float_bits(tile.c[i]) & 0x7FFFFFFFu);
    largest = magnitude > largest ? magnitude : largest;
  }
  if (static_cast<std::uint32_t>(largest) < kExponentMask) return;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* c = tile.c + r * L::kColumns;
    for (std::int64_t j = tile.first_column; j < tile.last_column; ++j) {
      if ((float_bits(c[j]) & kExponentMask) != kExponentMask) continue;
      const std::uint32_t start =
          tile.from_zero ? 0u
                         : float_bits(tile.start[r * tile.start_stride + j - tile.first_column]);
      c[j] = recompute<L>(tile, model, r, j, start);
    }
  }
}

template <class Lanes, class L>
void run_chain(const ChainTile& tile, const ScalarModel& model) {
  for (std::int64_t group = 0; group * L::kGroup < tile.k; ++group) {
    const std::int64_t left = tile.k - group * L::kGroup;
    const bool from_zero = group == 0 && tile.from_zero;
    if (left < L::kGroup) {
      const int count = static_cast<int>(left);
      from_zero ? run_group_rows<Lanes, L, true, 0>(tile, group, count)
                : run_group_rows<Lanes, L, false, 0>(tile, group, count);
    } else {
      from_zero ? run_group_rows<Lanes, L, true, L::kGroup>(tile, group, 0)
                : run_group_rows<Lanes, L, false, L::kGroup>(tile, group, 0);
    }
  }
  recompute_special<L>(tile, model);
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
