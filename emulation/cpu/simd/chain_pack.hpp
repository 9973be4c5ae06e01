// Packs FP8 operands for the emulated GEMM.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/byte_transpose.hpp"
#include "emulation/cpu/simd/chain_group.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// An element in the kernels' form: value, un-normalised exponent, exponent of its lowest set bit.
struct Parts {
  std::uint32_t value_bits;  ///< FP32; NaN is quiet with a small payload
  std::int32_t exponent, low;
  std::int32_t magnitude, sign;  ///< of the code, in place
};

/// Selects `yes` or `no` with masks. GCC 12 turns conditional expressions here into branches and
/// then does not vectorise the loops.
constexpr std::int32_t select(bool condition, std::int32_t yes, std::int32_t no) {
  const std::int32_t mask = -static_cast<std::int32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// Splits a code without branches and without FP32 subnormals, so that loops over it vectorise.
/// kSpecial is the first magnitude that is not a finite number.
template <int kExponentBits, int kMantissaBits, int kBias, int kSpecial>
struct Splitter {
  static constexpr std::int32_t kSign = 1 << (kExponentBits + kMantissaBits);

  static constexpr Parts split(std::int32_t code) {
    constexpr std::int32_t kHidden = 1 << kMantissaBits;
    Parts parts{};
    parts.magnitude = code & (kSign - 1);
    parts.sign = code & kSign;
    const std::int32_t field = parts.magnitude >> kMantissaBits;
    const std::int32_t mantissa = parts.magnitude & (kHidden - 1);
    const std::int32_t significand = mantissa | select(field != 0, kHidden, 0);
    parts.exponent = (field | select(field == 0, 1, 0)) - kBias;
    const std::int32_t lowest = significand & -significand;
    const auto lowest_bits = static_cast<std::int32_t>(float_bits(static_cast<float>(lowest)));
    parts.low = parts.exponent - kMantissaBits + (lowest_bits >> 23) - 127;
    parts.value_bits = value_bits(parts, significand) | static_cast<std::uint32_t>(parts.sign)
                                                            << (31 - kExponentBits - kMantissaBits);
    return parts;
  }

 private:
  static constexpr std::uint32_t value_bits(const Parts& parts, std::int32_t significand) {
    const std::int32_t unit = parts.exponent - kMantissaBits;
    const float value =
        static_cast<float>(significand) * bits_float(static_cast<std::uint32_t>(unit + 127) << 23);
    constexpr bool kInfinities = kSpecial != kSign - 1;
    const bool infinite = kInfinities && parts.magnitude == kSpecial;
    const std::int32_t special = select(infinite, 0x7F800000, 0x7FC00000);
    const auto finite = static_cast<std::int32_t>(float_bits(value));
    return static_cast<std::uint32_t>(select(parts.magnitude >= kSpecial, special, finite));
  }
};

using SplitE4M3 = Splitter<4, 3, 7, 0x7F>;
using SplitE5M2 = Splitter<5, 2, 15, 0x7C>;

template <class Codes>
constexpr std::uint32_t left_gap(const Parts& p) {
  return Codes::kSplat *
         static_cast<std::uint32_t>(
             select(p.magnitude != 0, Codes::kLeftExponent - p.exponent, Codes::kLeftZero));
}
template <class Codes>
constexpr std::int32_t right_exponent(const Parts& p) {
  return select(p.magnitude != 0, p.exponent + Codes::kRightExponent, 0);
}
template <class Split, class Codes>
constexpr std::int32_t low_code(const Parts& p, std::int32_t zero) {
  static_assert(Split::kSign == Codes::kNegativeLow);
  return select(p.magnitude != 0, (p.low + Codes::kLow) | p.sign, zero);
}

/// Returns Fp8Codes::power of a number of e4m3; 0 for zero.
constexpr std::int32_t packed_power(const Parts& p) {
  return select(p.magnitude != 0, Fp8Codes::power(p.exponent), 0);
}

#if defined(FP8LAB_ISA_avx512_fp16)
/// The bytes that operands store for each of 128 magnitudes.
struct CodeBytes {
  alignas(64) std::uint8_t value_top[128], value_next[128], power_top[128];
  alignas(64) std::uint8_t left_gap[128], left_low[128], right_exponent[128], right_low[128];
};
template <class Split>
constexpr CodeBytes list_code_bytes() {
  CodeBytes bytes{};
  for (std::int32_t i = 0; i < 128; ++i) {
    const Parts p = Split::split(i);
    const auto byte = [](auto bits) { return static_cast<std::uint8_t>(bits); };
    bytes.value_top[i] = byte(p.value_bits >> 24);
    bytes.value_next[i] = byte(p.value_bits >> 16);
    bytes.power_top[i] = byte(packed_power(p) >> 8);
    bytes.left_gap[i] = byte(left_gap<Fp8Codes>(p));
    bytes.left_low[i] = byte(low_code<Split, Fp8Codes>(p, Fp8Codes::kLeftZeroLow));
    bytes.right_exponent[i] = byte(right_exponent<Fp8Codes>(p));
    bytes.right_low[i] = byte(low_code<Split, Fp8Codes>(p, Fp8Codes::kRightZeroLow));
  }
  return bytes;
}

/// 64 FP8 codes, and the bytes that operands store for them, by table lookup.
template <class Split>
class CodeVector {
 public:
  explicit CodeVector(__m512i codes) : codes_(codes) {}

  /// Stores the FP32 values of codes 16 part .. 16 part + 15.
  void store_values(int part, std::byte* out) const {
    const __m512i top = _mm512_or_si512(look_up(kBytes.value_top), signs());
    const __m512i next = look_up(kBytes.value_next);
    const __mmask64 upper = 0xCCCCCCCCCCCCCCCCu;
    _mm512_storeu_si512(out, _mm512_maskz_permutex2var_epi8(upper, next, pairs(part), top));
  }
  __m512i left_gaps() const { return look_up(kBytes.left_gap); }
  __m512i left_lows() const { return add_signs(look_up(kBytes.left_low)); }
  __m512i right_exponents() const { return look_up(kBytes.right_exponent); }
  __m512i right_lows() const { return add_signs(look_up(kBytes.right_low)); }
  __m512i power_tops() const { return look_up(kBytes.power_top); }

  /// Returns indices that move byte 16 part + i to all four bytes of element i. In pairs() the top
  /// byte comes from a second vector.
  static __m512i splats(int part) {
    return _mm512_mullo_epi32(
        _mm512_add_epi32(_mm512_set1_epi32(16 * part),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)),
        _mm512_set1_epi32(0x01010101));
  }
  static __m512i pairs(int part) {
    return _mm512_or_si512(splats(part), _mm512_set1_epi32(0x40000000));
  }

 private:
  static constexpr CodeBytes kBytes = list_code_bytes<Split>();

  __m512i look_up(const std::uint8_t* table) const {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes_,
                                    _mm512_load_si512(table + 64));
  }
  __m512i signs() const { return _mm512_and_si512(codes_, _mm512_set1_epi8(-128)); }
  /// Adds the signs of codes other than zero.
  __m512i add_signs(__m512i bytes) const {
    const __mmask64 nonzero = _mm512_test_epi8_mask(codes_, _mm512_set1_epi8(127));
    return _mm512_mask_add_epi8(bytes, nonzero, bytes, signs());
  }

  __m512i codes_;
};

/// Packs one group of a left-operand row from its FP8 codes.
template <class Split, class L>
inline void pack_fp8_group(const std::uint8_t* codes, std::byte* out) {
  constexpr std::uint64_t kPresent = (std::uint64_t{1} << L::kGroup) - 1u;
  const CodeVector<Split> vector(_mm512_maskz_loadu_epi8(kPresent, codes));
  for (int part = 0; part < L::kGroup / 16; ++part) {
    std::byte* at = out + 64 * part;
    const __m512i splats = vector.splats(part);
    vector.store_values(part, at);
    if constexpr (!L::kPowers) {
      _mm512_storeu_si512(at + L::kGaps, _mm512_permutexvar_epi8(splats, vector.left_gaps()));
    }
    _mm512_storeu_si512(at + L::kLeftLows, _mm512_permutexvar_epi8(splats, vector.left_lows()));
  }
  if constexpr (L::kPowers) {
    const __m512i power = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(vector.power_tops()));
    _mm512_storeu_si512(out + L::kLeftPowers, _mm512_slli_epi16(power, 8));
  }
}

/// The column of each lane.
struct LaneColumns {
  alignas(64) std::uint8_t of[64];
};
template <class Lanes>
constexpr LaneColumns list_lane_columns() {
  LaneColumns columns{};
  for (int j = 0; j < 64; ++j) columns.of[Lanes::position(j)] = static_cast<std::uint8_t>(j);
  return columns;
}

/// Packs one k of a right-operand panel from the FP8 codes of its columns.
template <class Split, class L>
inline void pack_fp8_step(const std::uint8_t* codes, std::byte* out) {
  static constexpr LaneColumns kLaneColumns = list_lane_columns<typename L::Lanes>();
  const __m512i lanes = _mm512_load_si512(kLaneColumns.of);
  const CodeVector<Split> vector(_mm512_loadu_si512(codes));
  for (int part = 0; part < 4; ++part) vector.store_values(part, out + 64 * part);
  if constexpr (!L::kPowers) {
    _mm512_storeu_si512(out + L::kExponents,
                        _mm512_permutexvar_epi8(lanes, vector.right_exponents()));
  }
  _mm512_storeu_si512(out + L::kRightLows, _mm512_permutexvar_epi8(lanes, vector.right_lows()));
}
#endif

/// Packs one group of a left-operand row from its codes.
template <class Split, class L, class Codes, class T>
inline void pack_group(const T* __restrict codes, std::byte* __restrict out) {
#if defined(FP8LAB_ISA_avx512_fp16)
  if constexpr (sizeof(T) == 1) return pack_fp8_group<Split, L>(codes, out);
#endif
  auto* values = reinterpret_cast<typename L::Real*>(out);
  auto* gaps = reinterpret_cast<std::uint32_t*>(out + L::kGaps);
  auto* lows = reinterpret_cast<std::uint32_t*>(out + L::kLeftLows);
  for (std::int64_t k = 0; k < L::kGroup; ++k) {
    const Parts p = Split::split(codes[k]);
    values[k] = bits_float(p.value_bits);
    gaps[k] = left_gap<Codes>(p);
    const std::int32_t low = low_code<Split, Codes>(p, Codes::kLeftZeroLow);
    lows[k] = Codes::kSplat * static_cast<std::uint32_t>(low);
  }
}

/// Packs a left-operand row of `k` codes, `stride` apart, into groups `group_bytes` apart.
template <class Split, class L, class Codes, class T>
inline void pack_row(const T* codes, std::int64_t stride, std::int64_t k, std::byte* out,
                     std::int64_t group_bytes) {
  const std::int64_t direct = stride == 1 ? k / L::kGroup * L::kGroup : 0;
  for (std::int64_t begin = 0; begin < direct; begin += L::kGroup, out += group_bytes) {
    pack_group<Split, L, Codes>(codes + begin, out);
  }
  for (std::int64_t begin = direct; begin < k; begin += L::kGroup, out += group_bytes) {
    T gathered[L::kGroup] = {};
    const std::int64_t left = k - begin;
    for (std::int64_t l = 0; l < (left < L::kGroup ? left : L::kGroup); ++l) {
      gathered[l] = codes[(begin + l) * stride];
    }
    pack_group<Split, L, Codes>(gathered, out);
  }
}

/// Packs one k of a right-operand panel from the codes of its columns.
template <class Split, class L, class T>
inline void pack_step(const T* __restrict column_codes, std::byte* __restrict out) {
  using Lanes = typename L::Lanes;
  using Codes = typename Lanes::Codes;
  using Lane = typename Codes::Lane;
#if defined(FP8LAB_ISA_avx512_fp16)
  if constexpr (sizeof(T) == 1) return pack_fp8_step<Split, L>(column_codes, out);
#endif
  auto* values = reinterpret_cast<typename L::Real*>(out);
  Lane exponents[L::kColumns], lows[L::kColumns];
  for (int j = 0; j < L::kColumns; ++j) {
    const Parts p = Split::split(column_codes[j]);
    values[j] = bits_float(p.value_bits);
    exponents[j] = static_cast<Lane>(right_exponent<Codes>(p));
    lows[j] = static_cast<Lane>(low_code<Split, Codes>(p, Codes::kRightZeroLow));
  }
  if constexpr (!L::kPowers) Lanes::arrange(exponents, out + L::kExponents);
  Lanes::arrange(lows, out + L::kRightLows);
}

#if defined(FP8LAB_ISA_avx512_amx)
/// Packs the powers of two neighbouring k into row `pair` of the tiles of a panel's group.
template <class Split>
inline void pack_powers(const std::uint8_t* even, const std::uint8_t* odd, std::int64_t pair,
                        std::byte* tiles) {
  constexpr std::int64_t kTileRowBytes = 64, kTileBytes = 16 * kTileRowBytes;
  using Vector = CodeVector<Split>;
  const __m512i first = Vector(_mm512_loadu_si512(even)).power_tops();
  const __m512i second = Vector(_mm512_loadu_si512(odd)).power_tops();
  for (int t = 0; t < 4; ++t) {
    const __mmask64 tops = 0xAAAAAAAAAAAAAAAAu;
    _mm512_storeu_si512(tiles + t * kTileBytes + pair * kTileRowBytes,
                        _mm512_maskz_permutex2var_epi8(tops, first, Vector::pairs(t), second));
  }
}
#endif

/// Copies `count` k of `columns` rows of a right operand, each k to a row of `block`.
template <class L, class T>
inline void gather_block(const T* source, std::int64_t row_stride, std::int64_t k_stride,
                         std::int64_t columns, std::int64_t count, T (*block)[L::kColumns]) {
  if (row_stride == 1) {
    for (std::int64_t l = 0; l < count; ++l) {
      std::memcpy(block[l], source + l * k_stride, static_cast<std::size_t>(columns) * sizeof(T));
    }
  } else if constexpr (sizeof(T) == 1) {  // K is contiguous
    transpose_bytes<L::kColumns>(source, row_stride, columns, count, block[0], L::kColumns);
  } else {
    for (std::int64_t j = 0; j < columns; ++j) {
      const T* row = source + j * row_stride;
      for (std::int64_t l = 0; l < count; ++l) block[l][j] = row[l * k_stride];
    }
  }
}

/// Packs a right-operand panel from row `first` on; columns beyond `rows` become zeros.
template <class Split, class L, class T>
inline void pack_panel(const T* data, std::int64_t row_stride, std::int64_t k_stride,
                       std::int64_t first, std::int64_t rows, std::int64_t k, std::byte* out) {
  constexpr std::int64_t kBlock = 16;  // number of k transposed at a time
  const std::int64_t present = rows - first < L::kColumns ? rows - first : L::kColumns;
  const std::int64_t padded = L::kPowers ? (k + L::kGroup - 1) / L::kGroup * L::kGroup : k;
  T block[kBlock][L::kColumns] = {};
  for (std::int64_t begin = 0; begin < padded; begin += kBlock) {
    const std::int64_t count = std::clamp<std::int64_t>(k - begin, 0, kBlock);
    const T* source = data + first * row_stride + begin * k_stride;
    gather_block<L>(source, row_stride, k_stride, present, count, block);
    std::byte* group = out + begin / L::kGroup * L::kPanelGroup;
    const std::int64_t at = begin % L::kGroup;
    for (std::int64_t l = 0; l < count; ++l) {
      pack_step<Split, L>(block[l], group + (at + l) * L::kStep);
    }
#if defined(FP8LAB_ISA_avx512_amx)
    if constexpr (L::kPowers) {  // beyond k any powers do: the left operand has zeros there
      for (std::int64_t l = 0; l < kBlock; l += 2) {
        pack_powers<Split>(block[l], block[l + 1], (at + l) / 2, group + L::kRightPowers);
      }
    }
#endif
  }
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
