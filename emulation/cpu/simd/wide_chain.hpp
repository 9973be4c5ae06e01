// Chains of groups of wide products over vector lanes of FP64; see gemm_kernels.hpp for the method.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/chain_group.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/mma.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Layout of packed wide operands, and options of a group's sum: emax is at least kFloorExponent,
/// and results are rounded to kOutputFormat.
template <std::int64_t kGroupSize, ChainOutput kOutputFormat = ChainOutput::f32,
          int kFloorExponent = -WideCodes::kExponentBias>
struct WideLayout {
  using Lanes = WideLanes;
  static constexpr int kColumns = Lanes::kColumns;
  static constexpr std::int64_t kGroup = kGroupSize;
  static constexpr ChainOutput kOutput = kOutputFormat;
  static constexpr int kFloor = kFloorExponent + WideCodes::kExponentBias;
  /// Number of 16-bit words that hold one bit for each product of a group.
  static constexpr int kWords = kGroup > 16 ? static_cast<int>(kGroup) / 16 : 1;

  // Byte offsets in one group of a left-operand row: values; pairs of gaps,
  // twice; words of signs, twice.
  static constexpr std::int64_t kGaps = kGroup * 8;
  static constexpr std::int64_t kLeftSigns = kGaps + kGroup * 2;
  static constexpr std::int64_t kGroupBytes = kLeftSigns + (kWords * 4 + 7) / 8 * 8;
  // The same for a right-operand panel: values; pairs of exponents and
  // words of signs in lane order.
  static constexpr std::int64_t kLaneBytes = kColumns * 2;
  static constexpr std::int64_t kExponents = kGroup * kColumns * 8;
  static constexpr std::int64_t kRightSigns = kExponents + kGroup / 2 * kLaneBytes;
  static constexpr std::int64_t kPanelGroup = kRightSigns + kWords * kLaneBytes;

  static constexpr std::uint32_t kResultMask = ~0u;

  /// Returns product k of a column, for the scalar reference.
  static ProductParts product(const std::byte* a, const std::byte* b, std::int64_t column, int k) {
    std::uint64_t x, y;
    std::memcpy(&x, a + k * 8, sizeof x);
    std::memcpy(&y, b + (k * kColumns + column) * 8, sizeof y);
    const std::int64_t lane = Lanes::position(static_cast<int>(column));
    // A pair of gaps, or of exponents, is two bytes.
    const int gap = static_cast<int>(a[kGaps + k / 2 * 4 + k % 2]);
    const int code = static_cast<int>(b[kExponents + k / 2 * kLaneBytes + lane * 2 + k % 2]);
    return {gap == WideCodes::kLeftZero ? 0.0 : WideValue::value(x),
            code == 0 ? 0.0 : WideValue::value(y),
            WideValue::exponent(x, WideCodes::kMostExponent - gap) +
                WideValue::exponent(y, code - WideCodes::kRight)};
  }
};

using Bf16Layout = WideLayout<kBf16Group>;
static_assert(Bf16Layout::kGroupBytes == wide_group_bytes(kBf16Group));
static_assert(Bf16Layout::kPanelGroup == Bf16Layout::kColumns * wide_panel_bytes(kBf16Group));

/// Packed parts of one group of some rows of a tile.
struct WideStep {
  const std::byte* a;
  const std::byte* b;
};

/// The largest exponents of products of kRows rows, in pairs of bytes, two products at a time.
template <class L, int kRows>
class LargestExponents {
 public:
  using Lanes = typename L::Lanes;
  using Code = typename Lanes::Code;

  LargestExponents() {
    for (int r = 0; r < kRows; ++r) pairs_[r] = Lanes::bytes(L::kFloor);
  }
  void add(const WideStep& step, std::int64_t a_row_bytes, int pair) {
    const Code exponents = Lanes::load(step.b + L::kExponents + pair * L::kLaneBytes);
    for (int r = 0; r < kRows; ++r) {
      const Code gaps = Lanes::splat(load_u32(step.a + r * a_row_bytes + L::kGaps + 4 * pair));
      pairs_[r] = Lanes::max_bytes(pairs_[r], Lanes::subtract_bytes(exponents, gaps));
    }
  }
  /// Returns them as exponent fields of FP64.
  Code fields(int r) const {
    return Lanes::add(Lanes::larger_byte(pairs_[r]), Lanes::words(WideCodes::kField));
  }

 private:
  Code pairs_[kRows];
};

/// Returns the number of negative products of a group of one row.
template <class L>
[[gnu::always_inline]] inline typename L::Lanes::Code count_negative(const std::byte* a,
                                                                     const std::byte* b) {
  using Lanes = typename L::Lanes;
  typename Lanes::Code counted;
  for (int w = 0; w < L::kWords; ++w) {
    const auto ones =
        Lanes::count_ones(Lanes::differing(Lanes::splat(load_u32(a + L::kLeftSigns + 4 * w)),
                                           Lanes::load(b + L::kRightSigns + w * L::kLaneBytes)));
    counted = w == 0 ? ones : Lanes::add(counted, ones);
  }
  return counted;
}

/// The start values of the sums of a group of kRows rows, without c.
template <class L, int kRows>
struct WideStart {
  using Lanes = typename L::Lanes;
  typename Lanes::Code anchors[kRows], units[kRows];
  bool careful[kRows];  ///< results may not be normal numbers of FP32

  /// `c` (kRows, W): the accumulators.
  [[gnu::always_inline]] void set(const WideStep& step, std::int64_t a_row_bytes, const double* c,
                                  const LargestExponents<L, kRows>& exponents) {
    for (int r = 0; r < kRows; ++r) {
      const auto addends = Lanes::fields_and_signs(c + r * L::kColumns);
      auto addend = Lanes::fields_of(addends);
      if constexpr (L::kOutput == ChainOutput::f16) {
        addend = Lanes::at_least(addend, WideCodes::kLeastF16);
      }
      auto top = Lanes::max(exponents.fields(r), addend);
      careful[r] = Lanes::any_outside(top, WideCodes::kNormal, WideCodes::kTooLarge - 1);
      if (careful[r]) [[unlikely]] {
        top = Lanes::max(top, Lanes::at_least(addend, WideCodes::kLeastF32));
        top = Lanes::replace_above(top, WideCodes::kTooLarge - 1, WideCodes::kNaN);
      }
      anchors[r] = Lanes::anchor_words(top);
      units[r] =
          Lanes::add(count_negative<L>(step.a + r * a_row_bytes, step.b), Lanes::signs_of(addends));
    }
  }
};

/// Sums the group `step` of kRows rows: c (kRows, W) in and out. Also finds the largest exponents
/// of `next`, because they and the sums use different units of the processor.
template <class L, int kRows>
[[gnu::always_inline]] inline LargestExponents<L, kRows> sum_rows(const WideStep& step,
                                                                  std::int64_t a_row_bytes,
                                                                  const WideStart<L, kRows>& start,
                                                                  double* c, const WideStep& next) {
  using Lanes = typename L::Lanes;
  using Float = typename Lanes::Float;
  constexpr bool kToF16 = L::kOutput == ChainOutput::f16;
  const Float longer = Lanes::splat_value(&WideCodes::kLonger);
  Float y[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    const typename Lanes::Starts starts(start.anchors[r], start.units[r]);
    for (int v = 0; v < 4; ++v) {
      const Float addend = Lanes::load_values(c + r * L::kColumns + v * Lanes::kFloatLanes);
      y[r][v] = Lanes::multiply_add(addend, longer, starts.vector(v));
    }
  }
  LargestExponents<L, kRows> exponents;
  const auto add_products = [&](int k) __attribute__((always_inline)) {
    const auto* values = reinterpret_cast<const double*>(step.b) + k * L::kColumns;
    Float value[kRows];
    for (int r = 0; r < kRows; ++r) {
      value[r] = Lanes::splat_value(reinterpret_cast<const double*>(step.a + r * a_row_bytes) + k);
    }
    for (int v = 0; v < 4; ++v) {
      const Float right = Lanes::load_values(values + v * Lanes::kFloatLanes);
      for (int r = 0; r < kRows; ++r) y[r][v] = Lanes::multiply_add(value[r], right, y[r][v]);
    }
  };
#pragma GCC unroll WideLanes::kUnroll
  for (int pair = 0; pair < L::kGroup / 2; ++pair) {
    add_products(2 * pair);
    add_products(2 * pair + 1);
    exponents.add(next, a_row_bytes, pair);
  }
  for (int r = 0; r < kRows; ++r) {
    double* out = c + r * L::kColumns;
    if (!kToF16 && !start.careful[r]) [[likely]] {
      for (int v = 0; v < 4; ++v) {
        const Float sum = Lanes::subtract(y[r][v], Lanes::anchor(start.anchors[r], v));
        Lanes::store(out + v * Lanes::kFloatLanes, Lanes::cut_to_f32(sum));
      }
      continue;
    }
    alignas(64) float narrow[L::kColumns];
    for (int v = 0; v < 4; ++v) {
      const Float sum = Lanes::subtract(y[r][v], Lanes::anchor(start.anchors[r], v));
      Lanes::template narrow<!kToF16>(sum, narrow + v * Lanes::kFloatLanes);
    }
    if constexpr (kToF16) {
      for (int j = 0; j < L::kColumns; j += F16Rounding::kLanes) {
        F16Rounding::round(narrow + j, bits_float(kOverflowedF16));
      }
    }
    for (int v = 0; v < 4; ++v) {
      Lanes::store(out + v * Lanes::kFloatLanes, Lanes::widen(narrow + v * Lanes::kFloatLanes));
    }
  }
  return exponents;
}

/// Number of rows whose accumulators are in FP64 at a time.
constexpr std::int64_t kWideRows = 60;

/// Runs all groups of `blocks` > 0 blocks of kRows rows from row `first` of the tile
/// on: c (rows, W) in and out.
template <class L, int kRows>
void run_wide_rows(const ChainTile& tile, std::int64_t first, std::int64_t blocks, double* c) {
  const std::int64_t groups = (tile.k + L::kGroup - 1) / L::kGroup, row_bytes = tile.a_row_bytes;
  constexpr std::int64_t kLines = (L::kPanelGroup + kCacheLine - 1) / kCacheLine;
  const std::int64_t bytes_each = (kLines + blocks - 1) / blocks * kCacheLine;
  WideStep step{tile.a + first * row_bytes, tile.b};
  LargestExponents<L, kRows> exponents;
  for (int pair = 0; pair < L::kGroup / 2; ++pair) exponents.add(step, row_bytes, pair);
  WideStart<L, kRows> start;
  start.set(step, row_bytes, c, exponents);
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t i = 0; i < blocks; ++i) {
      // After the last block of the last group, `next` is that block again;
      // its exponents are unused.
      const bool last = i + 1 == blocks, end = last && group + 1 == groups;
      WideStep next = step;
      if (!last) {
        next.a += kRows * row_bytes;
      } else if (!end) {
        next.a = tile.a + (group + 1) * tile.a_group_bytes + first * row_bytes;
        next.b += L::kPanelGroup;
      }
      // Prefetches this block's part of the panel's next group, see prefetch_part.
      const std::byte* ahead = step.b + L::kPanelGroup + i * bytes_each;
      for (std::int64_t at = 0; at < bytes_each; at += kCacheLine) __builtin_prefetch(ahead + at);
      const auto found =
          sum_rows<L, kRows>(step, row_bytes, start, c + i * kRows * L::kColumns, next);
      start.set(next, row_bytes, c + (last ? 0 : i + 1) * kRows * L::kColumns, found);
      step = next;
    }
  }
}

/// Runs the chain of a tile; `model` defines the sum of each group.
template <class L>
void run_wide_chain(const ChainTile& tile, const numerics::GroupModel& model) {
  alignas(64) double c[kWideRows * L::kColumns];
  for (std::int64_t first = 0; first < tile.rows; first += kWideRows) {
    const std::int64_t rows = std::min(kWideRows, tile.rows - first);
    float* narrow = tile.c + first * L::kColumns;
    for (std::int64_t i = 0; i < rows * L::kColumns; ++i) {
      c[i] = tile.from_zero ? 0.0 : static_cast<double>(narrow[i]) + 0.0;  // -0 becomes +0
    }
    constexpr int kRows = L::Lanes::kRows;
    const std::int64_t blocks = rows / kRows, rest = rows % kRows;
    if (blocks > 0) run_wide_rows<L, kRows>(tile, first, blocks, c);
    if (rest > 0) {
      const std::int64_t done = blocks * kRows;
      run_wide_rows<L, 1>(tile, first + done, rest, c + done * L::kColumns);
    }
    for (std::int64_t i = 0; i < rows * L::kColumns; ++i) narrow[i] = static_cast<float>(c[i]);
  }
  finish_chain<L>(tile, model);
  if constexpr (L::kOutput == ChainOutput::f16) finish_f16<L>(tile);
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
