// Packing of wide operands for the emulated GEMM.
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

/// The exponent of a block scale: a positive power of two, or anything for NaN.
inline std::int32_t scale_exponent(float scale) {
  const std::uint32_t bits = float_bits(scale);
  return bits >> 23 != 0 ? static_cast<std::int32_t>(bits >> 23) - 127 : -127;  // 2^-127
}

/// The largest of two without a branch, which would keep GCC 12 from vectorising.
constexpr std::int32_t larger(std::int32_t x, std::int32_t y) { return x > y ? x : y; }

/// An un-normalised exponent: numbers below 2^least count there. See WideSource.
constexpr std::int32_t wide_exponent(std::uint32_t bits, std::int32_t least) {
  return larger(static_cast<std::int32_t>(bits >> 23 & 0xFFu) - 127, least);
}
constexpr bool is_nonzero(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) != 0; }
/// 1 below zero.
constexpr std::uint32_t is_negative(std::uint32_t bits) { return bits > 0x80000000u ? 1u : 0u; }

/// Whether an element is packed as WideValue::escape says.
inline bool is_escaped(float x, std::int32_t exponent, double factor) {
  return exponent > WideCodes::kMostExponent && (x != 0.0f || std::isnan(factor));
}

/// One group of a left-operand row.
template <class L>
inline void pack_wide_group(const float* __restrict x, std::int32_t least, float scale,
                            std::byte* __restrict out) {
  auto* values = reinterpret_cast<double*>(out);
  const std::int32_t shift = scale_exponent(scale);
  const double factor = static_cast<double>(scale);
  std::int32_t gaps[L::kGroup];
  std::int32_t largest = -WideValue::kExponentBias;
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    const std::uint32_t bits = float_bits(x[k]);
    const std::int32_t exponent = wide_exponent(bits, least) + shift;
    largest = larger(largest, exponent);
    const double value = static_cast<double>(x[k]) * factor * WideCodes::kLonger;
    values[k] = is_nonzero(bits) ? value : WideCodes::kZero;
    const std::int32_t gap = larger(WideCodes::kMostExponent - exponent, 0);
    gaps[k] = is_nonzero(bits) ? gap : WideCodes::kLeftZero;
  }
  if (largest > WideCodes::kMostExponent) {
    for (std::int64_t k = 0; k < L::kGroup; ++k) {
      const std::int32_t exponent = wide_exponent(float_bits(x[k]), least) + shift;
      if (!is_escaped(x[k], exponent, factor)) continue;
      values[k] =
          numerics::bits_double(WideValue::escape(static_cast<double>(x[k]) * factor, exponent));
    }
  }
  for (std::int64_t k = 0; k < L::kGroup; k += 2) {
    const auto pair = static_cast<std::uint32_t>(gaps[k] | gaps[k + 1] << 8);
    const std::uint32_t twice = pair | pair << 16;
    std::memcpy(out + L::kGaps + 2 * k, &twice, sizeof twice);
  }
  constexpr std::int64_t kWordBits = std::min<std::int64_t>(L::kGroup, 16);
  for (std::int64_t w = 0; w < L::kWords; ++w) {
    std::uint32_t signs = 0;
    for (std::int64_t k = 0; k < kWordBits; ++k) {
      const std::uint32_t bits = float_bits(x[w * kWordBits + k]);
      signs |= is_negative(bits) << k;
    }
    signs |= signs << 16;
    std::memcpy(out + L::kLeftSigns + 4 * w, &signs, sizeof signs);
  }
}

/// A left-operand row of BF16 codes.
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

/// A row of wide values, K contiguous, in groups with one scale for each 32 elements.
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

/// One group of a right-operand panel.
template <class L>
inline void pack_wide_steps(const float (*__restrict x)[L::kColumns], std::int32_t least,
                            const ColumnScales<L>& scales, std::byte* __restrict out) {
  auto* values = reinterpret_cast<double*>(out);
  std::int32_t largest = -WideValue::kExponentBias;
  std::uint16_t pairs[L::kColumns], signs[L::kColumns];
  const auto arrange = [](const std::uint16_t* columns, std::byte* lanes) {
    for (int j = 0; j < L::kColumns; j += 2) {
      std::memcpy(lanes + L::Lanes::position(j) * 2, columns + j, 4);
    }
  };
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    const std::int64_t bit = k % 16;
    for (int j = 0; j < L::kColumns; ++j) {
      const std::uint32_t bits = float_bits(x[k][j]);
      const std::int32_t exponent = wide_exponent(bits, least) + scales.shifts[j];
      largest = larger(largest, exponent);
      const bool nonzero = is_nonzero(bits);
      const double value = static_cast<double>(x[k][j]) * scales.factors[j];
      values[k * L::kColumns + j] = nonzero ? value : WideCodes::kZero;
      const std::int32_t code = WideCodes::kRight + WideCodes::kMostExponent -
                                larger(WideCodes::kMostExponent - exponent, 0);
      const auto before = static_cast<std::int32_t>(k % 2 == 0 ? 0 : pairs[j]);
      pairs[j] = static_cast<std::uint16_t>(before | (nonzero ? code : 0) << (k % 2 * 8));
      signs[j] = static_cast<std::uint16_t>((bit == 0 ? 0u : signs[j]) | is_negative(bits) << bit);
    }
    if (k % 2 == 1) arrange(pairs, out + L::kExponents + k / 2 * L::kLaneBytes);
    if (bit == 15 || k == L::kGroup - 1) {
      arrange(signs, out + L::kRightSigns + k / 16 * L::kLaneBytes);
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

/// A right-operand panel of BF16 codes from row `first` on; columns beyond `rows` are zeros.
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

/// A right-operand panel of wide values.
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
