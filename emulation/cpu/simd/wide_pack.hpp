// Packs wide operands for the emulated GEMM.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/cpu/simd/wide_chain.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Elements along K that share a block scale of WideSource.
inline constexpr std::int64_t kScaledElements = 32;

/// Returns the exponent of a block scale, a positive power of two; any value for NaN.
inline std::int32_t scale_exponent(float scale) {
  const std::uint32_t bits = float_bits(scale);
  return bits >> 23 != 0 ? static_cast<std::int32_t>(bits >> 23) - 127 : -127;  // 2^-127
}

/// Returns an un-normalised exponent: that of numbers below 2^least is `least`. See WideSource.
constexpr std::int32_t wide_exponent(std::uint32_t bits, std::int32_t least) {
  return std::max(static_cast<std::int32_t>(bits >> 23 & 0xFFu) - 127, least);
}
/// Returns all bits set for a zero, none for other numbers. This and the following functions avoid
/// conditional expressions, which GCC 12 turns into branches.
constexpr std::int32_t zero_mask(std::uint32_t bits) {
  return -static_cast<std::int32_t>(bits << 1 == 0);
}
/// Returns 1 below zero.
constexpr std::uint32_t is_negative(std::uint32_t bits) {
  return static_cast<std::uint32_t>(bits > 0x80000000u);
}

/// Returns whether an element is packed by WideValue::escape.
inline bool is_escaped(float x, std::int32_t exponent, double factor) {
  return exponent > WideCodes::kMostExponent && (x != 0.0f || std::isnan(factor));
}

/// Packs one group of a left-operand row.
template <class L>
inline void pack_wide_group(const float* __restrict x, std::int32_t least, float scale,
                            std::byte* __restrict out) {
  auto* values = reinterpret_cast<double*>(out);
  const std::int32_t shift = scale_exponent(scale);
  const double factor = static_cast<double>(scale), longer = factor * WideCodes::kLonger;
  std::uint32_t bits[L::kGroup];
  std::memcpy(bits, x, sizeof bits);
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    values[k] = static_cast<double>(x[k]) * longer + WideCodes::kZero;
  }
  std::uint8_t gaps[L::kGroup], negative[L::kGroup];
  std::int32_t largest = -WideValue::kExponentBias;
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    const std::int32_t exponent = wide_exponent(bits[k], least) + shift;
    largest = std::max(largest, exponent);
    const std::int32_t gap = std::max(WideCodes::kMostExponent - exponent, 0);
    gaps[k] = static_cast<std::uint8_t>(gap | (zero_mask(bits[k]) & WideCodes::kLeftZero));
    negative[k] = static_cast<std::uint8_t>(is_negative(bits[k]));
  }
  if (largest > WideCodes::kMostExponent) {
    for (std::int64_t k = 0; k < L::kGroup; ++k) {
      const std::int32_t exponent = wide_exponent(bits[k], least) + shift;
      if (!is_escaped(x[k], exponent, factor)) continue;
      values[k] =
          numerics::bits_double(WideValue::escape(static_cast<double>(x[k]) * factor, exponent));
    }
  }
  std::uint16_t pairs[L::kGroup / 2];
  std::memcpy(pairs, gaps, sizeof pairs);
  auto* twice = reinterpret_cast<std::uint32_t*>(out + L::kGaps);
  for (std::int64_t i = 0; i < L::kGroup / 2; ++i) twice[i] = pairs[i] * 0x10001u;
  std::uint16_t words[2 * L::kWords] = {};
  for (std::int64_t k = 0; k < L::kGroup; k += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, negative + k, sizeof eight);
    const std::uint64_t byte = eight * 0x0102040810204080u >> 56;  // bit 0 of each
    words[k / 16 * 2] |= static_cast<std::uint16_t>(byte << k % 16);
  }
  for (std::int64_t w = 0; w < L::kWords; ++w) words[2 * w + 1] = words[2 * w];
  std::memcpy(out + L::kLeftSigns, words, sizeof words);
}

/// Packs a left-operand row of BF16 codes.
template <class L>
inline void pack_bf16_groups(const std::uint16_t* codes, std::int64_t stride, std::int64_t k,
                             std::byte* out, std::int64_t group_bytes) {
  constexpr std::int32_t kLeast = numerics::kBF16.min_exponent();
  float x[L::kGroup] = {};
  for (std::int64_t begin = 0; begin < k; begin += L::kGroup, out += group_bytes) {
    const std::int64_t count = std::min(k - begin, L::kGroup);
    if (count < L::kGroup) std::fill_n(x, L::kGroup, 0.0f);
    const std::uint16_t* group = codes + begin * stride;
    if (stride == 1) {
      for (std::int64_t l = 0; l < count; ++l) x[l] = numerics::from_bf16(group[l]);
    } else {
      for (std::int64_t l = 0; l < count; ++l) x[l] = numerics::from_bf16(group[l * stride]);
    }
    pack_wide_group<L>(x, kLeast, 1.0f, out);
  }
}

/// Packs a row of wide values, K contiguous, in groups with one scale for each 32 elements.
template <class L>
inline void pack_wide_groups(const float* data, const float* scales, int least, std::int64_t k,
                             std::byte* out, std::int64_t group_bytes) {
  float x[L::kGroup] = {};
  for (std::int64_t begin = 0; begin < k; begin += L::kGroup, out += group_bytes) {
    const float scale = scales == nullptr ? 1.0f : scales[begin / kScaledElements];
    const std::int64_t count = std::min(k - begin, L::kGroup);
    if (count < L::kGroup) std::fill_n(x, L::kGroup, 0.0f);
    std::copy_n(data + begin, count, x);
    pack_wide_group<L>(x, least, scale, out);
  }
}

/// The scales of the columns of a panel.
template <class L>
struct ColumnScales {
  double factors[L::kColumns];
  std::int32_t shifts[L::kColumns];

  ColumnScales() {
    std::fill_n(factors, L::kColumns, 1.0);
    std::fill_n(shifts, L::kColumns, 0);
  }
  void set(std::int64_t column, float scale) {
    factors[column] = static_cast<double>(scale);
    shifts[column] = scale_exponent(scale);
  }
};

/// Packs one group of a right-operand panel.
template <class L>
inline void pack_wide_steps(const float (*__restrict x)[L::kColumns], std::int32_t least,
                            const ColumnScales<L>& scales, std::byte* __restrict out) {
  auto* values = reinterpret_cast<double*>(out);
  std::int32_t largest = -WideValue::kExponentBias;
  std::uint32_t pairs[L::kColumns] = {}, signs[L::kColumns] = {};
  const auto arrange = [](const std::uint32_t* columns, std::byte* lanes) {
    std::uint16_t narrow[L::kColumns];
    for (int j = 0; j < L::kColumns; ++j) narrow[j] = static_cast<std::uint16_t>(columns[j]);
    for (int j = 0; j < L::kColumns; j += 2) {
      std::memcpy(lanes + L::Lanes::position(j) * 2, narrow + j, 4);
    }
  };
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    for (int j = 0; j < L::kColumns; ++j) {
      values[k * L::kColumns + j] =
          static_cast<double>(x[k][j]) * scales.factors[j] + WideCodes::kZero;
    }
    const auto bit = static_cast<int>(k % 16), shift = static_cast<int>(k % 2 * 8);
    const std::uint32_t before = k % 2 == 0 ? 0u : 0xFFu;
    std::uint32_t bits[L::kColumns];
    std::memcpy(bits, x[k], sizeof bits);
    for (int j = 0; j < L::kColumns; ++j) {
      const std::int32_t exponent = wide_exponent(bits[j], least) + scales.shifts[j];
      largest = std::max(largest, exponent);
      const std::int32_t code = std::min(exponent, WideCodes::kMostExponent) + WideCodes::kRight;
      const auto present = static_cast<std::uint32_t>(code & ~zero_mask(bits[j]));
      pairs[j] = (pairs[j] & before) | present << shift;
      signs[j] |= is_negative(bits[j]) << bit;
    }
    if (shift != 0) arrange(pairs, out + L::kExponents + k / 2 * L::kLaneBytes);
    if (bit == 15 || k == L::kGroup - 1) {
      arrange(signs, out + L::kRightSigns + k / 16 * L::kLaneBytes);
      std::fill_n(signs, L::kColumns, 0u);
    }
  }
  if (largest <= WideCodes::kMostExponent) return;
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    for (int j = 0; j < L::kColumns; ++j) {
      const std::int32_t exponent = wide_exponent(float_bits(x[k][j]), least) + scales.shifts[j];
      if (!is_escaped(x[k][j], exponent, scales.factors[j])) continue;
      values[k * L::kColumns + j] = numerics::bits_double(
          WideValue::escape(static_cast<double>(x[k][j]) * scales.factors[j], exponent));
    }
  }
}

/// Packs a right-operand panel of BF16 codes from row `first` on; columns
/// beyond `rows` become zeros.
template <class L>
inline void pack_bf16_steps(const Bf16Source& source, std::int64_t first, std::int64_t rows,
                            std::int64_t k, std::byte* out) {
  constexpr std::int32_t kLeast = numerics::kBF16.min_exponent();
  const std::int64_t present = std::min<std::int64_t>(rows - first, L::kColumns);
  const ColumnScales<L> scales;
  float block[L::kGroup][L::kColumns] = {};
  for (std::int64_t begin = 0; begin < k; begin += L::kGroup, out += L::kPanelGroup) {
    const std::int64_t count = std::min(k - begin, L::kGroup);
    for (std::int64_t l = count; l < L::kGroup; ++l) std::fill_n(block[l], L::kColumns, 0.0f);
    const std::uint16_t* codes = source.data + first * source.row_stride + begin * source.k_stride;
    if (source.row_stride == 1) {
      for (std::int64_t l = 0; l < count; ++l) {
        const std::uint16_t* step = codes + l * source.k_stride;
        for (std::int64_t j = 0; j < present; ++j) block[l][j] = numerics::from_bf16(step[j]);
      }
    } else {
      for (std::int64_t j = 0; j < present; ++j) {
        const std::uint16_t* row = codes + j * source.row_stride;
        for (std::int64_t l = 0; l < count; ++l) {
          block[l][j] = numerics::from_bf16(row[l * source.k_stride]);
        }
      }
    }
    pack_wide_steps<L>(block, kLeast, scales, out);
  }
}

/// Packs a right-operand panel of wide values.
template <class L>
inline void pack_wide_panel(const WideSource& source, std::int64_t first, std::int64_t rows,
                            std::int64_t k, std::byte* out) {
  const std::int64_t present = std::min<std::int64_t>(rows - first, L::kColumns);
  ColumnScales<L> scales;
  float block[L::kGroup][L::kColumns] = {};
  for (std::int64_t begin = 0; begin < k; begin += L::kGroup, out += L::kPanelGroup) {
    const std::int64_t count = std::min(k - begin, L::kGroup);
    for (std::int64_t l = count; l < L::kGroup; ++l) std::fill_n(block[l], L::kColumns, 0.0f);
    for (std::int64_t j = 0; j < present; ++j) {
      const std::int64_t row = first + j;
      if (source.scales != nullptr) {
        scales.set(
            j,
            source.scales[row / source.scale_rows * source.scale_stride + begin / kScaledElements]);
      }
      const float* values = source.data + row * source.row_stride + begin;
      for (std::int64_t l = 0; l < count; ++l) block[l][j] = values[l];
    }
    pack_wide_steps<L>(block, source.min_exponent, scales, out);
  }
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
