// Chains of fused groups over vector lanes; see gemm_kernels.hpp for the method.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/numerics/codec.hpp"
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

/// Format of a chain's accumulator.
enum class ChainOutput { f32, f16 };

/// 2^100 stands for an infinity that finite products produced in an FP16 accumulator. It absorbs
/// all later products, keeps its sign, and does not cause a recomputation of the lane.
inline constexpr std::uint32_t kOverflowedF16 = 0x71800000u;

/// The factors of a product of numbers, their exponents un-normalised and added.
struct ProductParts {
  double a, b;
  int exponent;
};

/// Returns the un-normalised exponent of a number of e4m3.
inline int e4m3_exponent(double value) {
  const int exponent = std::ilogb(value);
  constexpr int kLeast = numerics::kE4M3.min_exponent();
  return exponent > kLeast ? exponent : kLeast;
}

/// Layout of packed operands, and options of a group's sum: emax is at least kEmaxFloor, and
/// results are rounded to kOutput. With kPowers, packed powers replace the exponents, and PowerSums
/// finds the largest exponents of products.
template <class LanesT, std::int64_t kGroupSize, ChainOutput kOutputFormat = ChainOutput::f32,
          int kEmaxFloor = LanesT::Codes::kFloor - LanesT::Codes::kExponentBias,
          bool kPackedPowers = false>
struct Layout {
  using Lanes = LanesT;
  using Real = typename Lanes::Real;
  using Lane = typename Lanes::Codes::Lane;
  static constexpr int kColumns = 4 * Lanes::kFloatLanes;
  static constexpr std::int64_t kGroup = kGroupSize;
  static constexpr ChainOutput kOutput = kOutputFormat;
  static constexpr bool kPowers = kPackedPowers;
  /// Codes of the common exponent: its floor, and the smallest one of an FP16 addend (a
  /// subnormal addend counts at -14).
  static constexpr int kFloor = kEmaxFloor + Lanes::Codes::kExponentBias;
  static constexpr int kLeastF16 = -14 + Lanes::Codes::kExponentBias;

  // Byte offsets in one group of a left-operand row.
  static constexpr std::int64_t kGaps = kGroup * std::int64_t{sizeof(Real)};
  static constexpr std::int64_t kLeftLows = kGaps + (kPowers ? 0 : kGroup * 4);
  static constexpr std::int64_t kLeftPowers = kLeftLows + kGroup * 4;
  static constexpr std::int64_t kGroupBytes = kLeftPowers + (kPowers ? kGroup * 2 : 0);
  // Byte offsets in one k of a right-operand panel.
  static constexpr std::int64_t kLaneBytes = kColumns * std::int64_t{sizeof(Lane)};
  static constexpr std::int64_t kExponents = kColumns * std::int64_t{sizeof(Real)};
  static constexpr std::int64_t kRightLows = kExponents + (kPowers ? 0 : kLaneBytes);
  static constexpr std::int64_t kStep = kRightLows + kLaneBytes;
  // Byte offsets in one group of a right-operand panel: all its k, then their powers.
  static constexpr std::int64_t kRightPowers = kGroup * kStep;
  static constexpr std::int64_t kPanelGroup = kRightPowers + (kPowers ? kColumns * kGroup * 2 : 0);

  /// Bytes that are prefetched: all but the powers.
  static constexpr std::int64_t kPrefetched = kRightPowers, kRowPrefetched = kLeftPowers;
  static constexpr std::uint32_t kResultMask = Lanes::Codes::kResultMask;

  /// Returns product k of a column, for the scalar reference.
  static ProductParts product(const std::byte* a, const std::byte* b, std::int64_t column, int k) {
    const std::byte* step = b + k * kStep;
    Real x, y;
    std::memcpy(&x, a + k * std::int64_t{sizeof x}, sizeof x);
    std::memcpy(&y, step + column * std::int64_t{sizeof y}, sizeof y);
    if constexpr (kPowers) return {x, y, e4m3_exponent(x) + e4m3_exponent(y)};
    Lane gap, exponent;
    std::memcpy(&gap, a + kGaps + 4 * k, sizeof gap);
    const std::int64_t lane = Lanes::position(static_cast<int>(column));
    std::memcpy(&exponent, step + kExponents + lane * std::int64_t{sizeof exponent},
                sizeof exponent);
    return {x, y, exponent - gap - Lanes::Codes::kExponentBias};
  }
};

using Fp8Layout = Layout<Fp8Lanes, kFp8Group>;
static_assert(Fp8Layout::kGroupBytes == kFp8Group * kFp8ProductBytes);
static_assert(Fp8Layout::kStep == Fp8Layout::kColumns * kFp8PanelBytes);

inline std::uint32_t load_u32(const std::byte* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

/// Finds the common exponents of a group for kRows rows; reads `products`
/// (kRows, W) with L::kPowers.
template <class L, int kRows, bool kFromZero>
[[gnu::always_inline]] inline void find_exponents(const std::byte* a, std::int64_t a_row_bytes,
                                                  const std::byte* b, int count, const float* c,
                                                  const std::byte* products,
                                                  typename L::Lanes::Code* top) {
  using Lanes = typename L::Lanes;
  using Code = typename Lanes::Code;
  for (int r = 0; r < kRows; ++r) {
    top[r] = Lanes::all(L::kFloor);
    if constexpr (L::kPowers) top[r] = Lanes::load(products + r * L::kLaneBytes);
    if constexpr (!kFromZero) {
      Code addend = Lanes::exponents(c + r * L::kColumns);
      if constexpr (L::kOutput == ChainOutput::f16) addend = Lanes::at_least(addend, L::kLeastF16);
      top[r] = Lanes::max(addend, top[r]);
    }
  }
  if constexpr (L::kPowers) return;
  const std::byte* step = b;
#pragma GCC unroll 32
  for (int k = 0; k < count; ++k, step += L::kStep) {
    const Code exponent = Lanes::load(step + L::kExponents);
    for (int r = 0; r < kRows; ++r) {
      const Code gap = Lanes::splat(load_u32(a + r * a_row_bytes + L::kGaps + 4 * k));
      top[r] = Lanes::max(top[r], Lanes::subtract(exponent, gap));
    }
  }
}

/// Sums one group of `count` products for kRows rows with the common exponents `top`: c (kRows, W)
/// in and out. With Lanes::kFewRegisters, the sums of two rows leave registers for only one vector
/// of values: a sum spilled to memory before its next product takes three times as long.
template <class L, int kRows, bool kFromZero>
[[gnu::always_inline]] inline void sum_group(const std::byte* a, std::int64_t a_row_bytes,
                                             const std::byte* b, int count, float* c,
                                             const typename L::Lanes::Code* top) {
  using Lanes = typename L::Lanes;
  constexpr bool kToF16 = L::kOutput == ChainOutput::f16;
  using Code = typename Lanes::Code;
  using Float = typename Lanes::Float;
  using Real = typename Lanes::Real;
  using Counter = typename Lanes::template Counter<L::kGroup>;

  Float y[kRows][4], anchor[kRows][4];
  Code limit[kRows];
  Counter counter[kRows];
  for (int r = 0; r < kRows; ++r) {
    if constexpr (L::kPowers) {
      limit[r] = Lanes::small_limit(top[r]);
    } else {
      limit[r] = Lanes::limit(top[r]);
    }
    counter[r].clear(count);
    for (int v = 0; v < 4; ++v) {
      anchor[r][v] = Lanes::anchor(top[r], v);
      y[r][v] = kFromZero ? anchor[r][v] : Lanes::start(anchor[r][v], c + r * L::kColumns, v);
    }
  }
  const auto add_products = [&](int k) __attribute__((always_inline)) {
    const std::byte* at = b + k * L::kStep;
    if constexpr (Lanes::kFewRegisters) {
      Float value[kRows];
      for (int r = 0; r < kRows; ++r) {
        value[r] = Lanes::splat_value(reinterpret_cast<const Real*>(a + r * a_row_bytes) + k);
      }
      for (int v = 0; v < 4; ++v) {
        const Float values = Lanes::load_values(at + v * std::int64_t{sizeof(Float)});
        for (int r = 0; r < kRows; ++r) y[r][v] = Lanes::multiply_add(value[r], values, y[r][v]);
      }
      const Code low_b = Lanes::load(at + L::kRightLows);
      for (int r = 0; r < kRows; ++r) {
        const Code low_a = Lanes::splat(load_u32(a + r * a_row_bytes + L::kLeftLows + 4 * k));
        counter[r].add(k, low_a, low_b, limit[r]);
      }
    } else {
      Float values[4];
      for (int v = 0; v < 4; ++v) {
        values[v] = Lanes::load_values(at + v * std::int64_t{sizeof(Float)});
      }
      const Code low_b = Lanes::load(at + L::kRightLows);
      for (int r = 0; r < kRows; ++r) {
        const std::byte* row = a + r * a_row_bytes;
        const Float value = Lanes::splat_value(reinterpret_cast<const Real*>(row) + k);
        for (int v = 0; v < 4; ++v) y[r][v] = Lanes::multiply_add(value, values[v], y[r][v]);
        const Code low_a = Lanes::splat(load_u32(row + L::kLeftLows + 4 * k));
        counter[r].add(k, low_a, low_b, limit[r]);
      }
    }
  };
  if constexpr (Counter::kStores) {  // y alone is carried from product to product in registers
#pragma GCC unroll 32
    for (int k = 0; k < count; ++k) add_products(k);
  } else if constexpr (Lanes::kFewRegisters) {
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) add_products(k);
  } else {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) add_products(k);
  }
  for (int r = 0; r < kRows; ++r) {
    const Code counted = counter[r].total();
    for (int v = 0; v < 4; ++v) {
      Lanes::template finish<!kToF16>(y[r][v], anchor[r][v], counted, c + r * L::kColumns, v);
    }
    if constexpr (kToF16) {
      for (int j = 0; j < L::kColumns; j += F16Rounding::kLanes) {
        F16Rounding::round(c + r * L::kColumns + j, bits_float(kOverflowedF16));
      }
    }
  }
}

/// Runs one group of `count` > 0 products for kRows rows, Lanes::kSumRows of them at a time: c
/// (kRows, W) in and out; `products` as in find_exponents.
template <class L, int kRows, bool kFromZero>
[[gnu::always_inline]] inline void run_group(const std::byte* a, std::int64_t a_row_bytes,
                                             const std::byte* b, int count, float* c,
                                             const std::byte* products) {
  using Lanes = typename L::Lanes;
  constexpr int kSumRows = std::min(kRows, Lanes::kSumRows);
  static_assert(kRows % kSumRows == 0);
  if (count < 1) __builtin_unreachable();

  typename Lanes::Code top[kRows];
  find_exponents<L, kRows, kFromZero>(a, a_row_bytes, b, count, c, products, top);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r += kSumRows) {
    sum_group<L, kSumRows, kFromZero>(a + r * a_row_bytes, a_row_bytes, b, count,
                                      c + r * L::kColumns, top + r);
  }
}

constexpr std::int64_t kCacheLine = 64;

/// Prefetches part `index` of `parts` of the panel's next group, without powers. Otherwise the
/// first rows would wait for it line by line.
template <class L>
inline void prefetch_part(const std::byte* next, std::int64_t index, std::int64_t parts) {
  constexpr std::int64_t kLines = L::kPrefetched / kCacheLine;
  for (std::int64_t i = kLines * index / parts; i < kLines * (index + 1) / parts; ++i) {
    __builtin_prefetch(next + i * kCacheLine);
  }
}

/// Number of blocks of kRows rows that are prefetched ahead: all rows of a
/// tile exceed the L1 cache.
constexpr std::int64_t kBlocksAhead = 2;

/// Prefetches one group of a block of rows.
template <class L>
inline void prefetch_rows(const std::byte* next, std::int64_t row_bytes) {
  for (int r = 0; r < L::Lanes::kRows; ++r) {
    for (std::int64_t at = 0; at < L::kRowPrefetched; at += kCacheLine) {
      __builtin_prefetch(next + r * row_bytes + at);
    }
  }
}

/// Runs one group for all rows of a tile: kCount products, or `count` of them if kCount = 0. Reads
/// `products` (rows, W) with L::kPowers.
template <class L, bool kFromZero, int kCount>
void run_group_rows(const ChainTile& tile, std::int64_t group, int count,
                    const std::byte* products) {
  using Lanes = typename L::Lanes;
  if (kCount > 0) count = kCount;
  const std::byte* a = tile.a + group * tile.a_group_bytes;
  const std::byte* b = tile.b + group * L::kPanelGroup;
  float* c = tile.c;
  const std::int64_t blocks = tile.rows / Lanes::kRows;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t r = i * Lanes::kRows;
    prefetch_part<L>(b + L::kPanelGroup, i, blocks);
    prefetch_rows<L>(a + (r + kBlocksAhead * Lanes::kRows) * tile.a_row_bytes, tile.a_row_bytes);
    run_group<L, Lanes::kRows, kFromZero>(a + r * tile.a_row_bytes, tile.a_row_bytes, b, count,
                                          c + r * L::kColumns, products + r * L::kLaneBytes);
  }
  std::int64_t r = blocks * Lanes::kRows;
  if constexpr (Lanes::kSumRows < Lanes::kRows) {
    for (; r + Lanes::kSumRows <= tile.rows; r += Lanes::kSumRows) {
      run_group<L, Lanes::kSumRows, kFromZero>(a + r * tile.a_row_bytes, tile.a_row_bytes, b, count,
                                               c + r * L::kColumns, products + r * L::kLaneBytes);
    }
  }
  for (; r < tile.rows; ++r) {
    run_group<L, 1, kFromZero>(a + r * tile.a_row_bytes, tile.a_row_bytes, b, count,
                               c + r * L::kColumns, products + r * L::kLaneBytes);
  }
}

/// Returns a packed value in the form of the scalar reference's operands. Its
/// exponent is packed separately.
inline numerics::Unpacked unpack_real(double value) {
  numerics::Unpacked parts;
  parts.negative = std::signbit(value);
  parts.nan = std::isnan(value);
  parts.infinite = std::isinf(value);
  parts.significand = value != 0.0 ? 1u : 0u;
  return parts;
}

/// Returns |a * b| as a term that counts at `exponent`; the product is exact.
inline numerics::GroupTerm real_term(double a, double b, int exponent) {
  constexpr int kMantissaBits = 52;
  const double product = a * b;
  const std::uint64_t bits = numerics::double_bits(product);
  const int field = static_cast<int>(bits >> kMantissaBits & 0x7FFu);
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << kMantissaBits) - 1u);
  return {mantissa | std::uint64_t{1} << kMantissaBits, field - 1023 - kMantissaBits, exponent,
          std::signbit(product)};
}

/// Returns the accumulator's bits after one group of one lane. The scalar reference computes them
/// from the packed values and exponents; c holds the bits before the group.
template <class L>
std::uint32_t recompute_group(const numerics::GroupModel& model, const std::byte* a,
                              const std::byte* b, std::int64_t column, int count, std::uint32_t c) {
  const numerics::FormatSpec format = numerics::accumulator_format(model.output);
  const numerics::Unpacked addend = numerics::unpack(format, c);
  numerics::GroupSpecials specials;
  specials.nan = addend.nan;
  if (addend.infinite) specials.add_infinity(addend.negative);
  numerics::GroupTerm terms[L::kGroup + 1] = {};
  int filled = 0;
  int emax = model.min_exponent;
  const auto add = [&](const numerics::GroupTerm& term) {
    emax = term.exponent > emax ? term.exponent : emax;
    terms[filled++] = term;
  };
  for (int k = 0; k < count; ++k) {
    const ProductParts p = L::product(a, b, column, k);
    if (specials.add_product(unpack_real(p.a), unpack_real(p.b)) || p.a == 0 || p.b == 0) continue;
    add(real_term(p.a, p.b, p.exponent));
  }
  if (specials.any()) return specials.result(format);
  if (addend.significand != 0) {
    add({addend.significand, addend.exponent - format.mantissa_bits, addend.exponent,
         addend.negative});
  }
  return numerics::sum_terms(model, terms, filled, emax);
}

/// Recomputes one lane with the scalar reference.
template <class L>
[[gnu::noinline]] float recompute(const ChainTile& tile, const numerics::GroupModel& model,
                                  std::int64_t row, std::int64_t column, float start) {
  const numerics::FormatSpec format = numerics::accumulator_format(model.output);
  std::uint32_t accumulator = numerics::encode(
      format, float_bits(start), numerics::Rounding::nearest, numerics::Overflow::special);
  for (std::int64_t begin = 0; begin < tile.k; begin += L::kGroup) {
    const std::byte* a = tile.a + row * tile.a_row_bytes + begin / L::kGroup * tile.a_group_bytes;
    const std::int64_t left = tile.k - begin;
    const int count = static_cast<int>(left < L::kGroup ? left : L::kGroup);
    accumulator = recompute_group<L>(model, a, tile.b + begin / L::kGroup * L::kPanelGroup, column,
                                     count, accumulator);
    if (accumulator == format.nan_code()) break;  // NaN persists
  }
  return bits_float(numerics::decode_bits(format, accumulator));
}

/// Truncates the chain's results to their format and recomputes every infinity and NaN of the tile:
/// each marks a lane whose operands, addend or sum left the range of the vector arithmetic.
template <class L>
void finish_chain(const ChainTile& tile, const numerics::GroupModel& model) {
  constexpr std::uint32_t kExponentMask = 0x7F800000u;
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < tile.rows * L::kColumns; ++i) {
    const std::uint32_t bits = float_bits(tile.c[i]) & L::kResultMask;
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFu);
    tile.c[i] = bits_float(bits);
    largest = magnitude > largest ? magnitude : largest;
  }
  if (static_cast<std::uint32_t>(largest) < kExponentMask) return;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* c = tile.c + r * L::kColumns;
    for (std::int64_t j = tile.first_column; j < tile.last_column; ++j) {
      if ((float_bits(c[j]) & kExponentMask) != kExponentMask) continue;
      const float start =
          tile.from_zero ? 0.0f : tile.start[r * tile.start_stride + j - tile.first_column];
      c[j] = recompute<L>(tile, model, r, j, start);
    }
  }
}

/// Replaces kOverflowedF16 by the infinities of FP16 accumulators that it stands for.
template <class L>
void finish_f16(const ChainTile& tile) {
  for (std::int64_t i = 0; i < tile.rows * L::kColumns; ++i) {
    const std::uint32_t bits = float_bits(tile.c[i]);
    const bool overflowed = (bits & 0x7FFFFFFFu) == kOverflowedF16;
    tile.c[i] = bits_float(overflowed ? (bits & 0x80000000u) | numerics::kF32Infinity : bits);
  }
}

/// Runs one group of a tile.
template <class L>
void run_tile_group(const ChainTile& tile, std::int64_t group, const std::byte* products) {
  const std::int64_t left = tile.k - group * L::kGroup;
  const bool from_zero = group == 0 && tile.from_zero;
  if (left < L::kGroup) {
    const int count = static_cast<int>(left);
    from_zero ? run_group_rows<L, true, 0>(tile, group, count, products)
              : run_group_rows<L, false, 0>(tile, group, count, products);
  } else {
    from_zero ? run_group_rows<L, true, L::kGroup>(tile, group, 0, products)
              : run_group_rows<L, false, L::kGroup>(tile, group, 0, products);
  }
}

/// Runs the chain of a tile; `model` defines the sum of each group.
template <class L>
void run_chain(const ChainTile& tile, const numerics::GroupModel& model) {
  for (std::int64_t group = 0; group * L::kGroup < tile.k; ++group) {
    run_tile_group<L>(tile, group, nullptr);
  }
  finish_chain<L>(tile, model);
  if constexpr (L::kOutput == ChainOutput::f16) finish_f16<L>(tile);
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
