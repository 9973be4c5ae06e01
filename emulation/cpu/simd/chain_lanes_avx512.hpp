// Vector operations of the emulated GEMM on AVX-512 (F, BW, DQ, VL, VNNI; with FP16 also VBMI,
// BITALG and GFNI).
#pragma once

#include <cstdint>

#include "emulation/cpu/simd/chain_codes.hpp"
#include "emulation/cpu/simd/intrinsics.hpp"
#include "emulation/cpu/simd/wide_codes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Keeps a vector that is used more than once in a register. Otherwise GCC 12 reloads it for every
/// multiply-add, so that the load ports become the limit, or recomputes it instead of storing it.
template <class V>
inline V in_register(V vector) {
  __asm__("" : "+v"(vector));
  return vector;
}

#if defined(FP8LAB_ISA_avx512_fp16)
/// Counts in bytes. Stores the masks of a group's kProducts in memory, which takes no vector
/// operation, and counts them eight at a time.
template <class Lanes, int kProducts>
class StoredCounter {
 public:
  using Code = typename Lanes::Code;
  static constexpr bool kStores = true;

  void clear(int count) {
    for (int k = count; k < kProducts; ++k) masks_[k] = 0;
  }
  void add(int k, Code low_a, Code low_b, Code limits) {
    masks_[k] = Lanes::off_grid(low_a, low_b, limits);
  }
  Code total() const {
    Code sum = Lanes::zero();
    for (int k = 0; k < kProducts; k += 8) {
      // Byte l of eight masks, side by side, is a matrix of 8x8 bits; its transpose has one byte
      // for each of eight lanes.
      const Code bits = _mm512_permutexvar_epi8(side_by_side(), _mm512_load_si512(masks_ + k));
      const Code lanes = _mm512_gf2p8affine_epi64_epi8(unit_vectors(), bits, 0);
      sum = _mm512_add_epi8(sum, _mm512_popcnt_epi8(lanes));
    }
    return sum;
  }

 private:
  static Code side_by_side() {
    const auto element = [](int l) { return 0x3830282018100800ll + l * 0x0101010101010101ll; };
    return _mm512_setr_epi64(element(0), element(1), element(2), element(3), element(4), element(5),
                             element(6), element(7));
  }
  static Code unit_vectors() {
    return _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
  }

  alignas(64) std::uint64_t masks_[kProducts];
};
#endif

/// 64 columns: bytes of exponents, four vectors of 16 floats.
struct Fp8Lanes {
#if defined(FP8LAB_ISA_avx512_fp16)
  template <std::int64_t kGroup>
  using Counter = StoredCounter<Fp8Lanes, kGroup>;
#else
  template <std::int64_t>
  using Counter = LaneCounter<Fp8Lanes>;
#endif
  using Codes = Fp8Codes;
  using Real = float;
  using Float = __m512;
  using Code = __m512i;
  static constexpr int kFloatLanes = 16;
  static constexpr int kRows = 3;
  static constexpr int kSumRows = 3;
  static constexpr bool kFewRegisters = false;

  static constexpr int position(int column) {
    const int v = column / 16;
    return 4 * (column % 16) + (v == 1 ? 2 : v == 2 ? 1 : v);
  }

  /// Rearranges codes from column order to lane order: 32-bit element i holds columns i, 32 + i,
  /// 16 + i and 48 + i, lowest byte first. Shifts within it then reach all four vectors of floats.
  static void arrange(const Codes::Lane* columns, std::byte* lanes) {
    __m128i part[4];
    for (int v = 0; v < 4; ++v) {
      part[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns + 16 * v));
    }
    const __m128i low02 = _mm_unpacklo_epi8(part[0], part[2]);
    const __m128i low13 = _mm_unpacklo_epi8(part[1], part[3]);
    const __m128i high02 = _mm_unpackhi_epi8(part[0], part[2]);
    const __m128i high13 = _mm_unpackhi_epi8(part[1], part[3]);
    auto* out = reinterpret_cast<__m128i*>(lanes);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low02, low13));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low02, low13));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high02, high13));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high02, high13));
  }

  static Code zero() { return _mm512_setzero_si512(); }
  static Code load(const std::byte* p) { return _mm512_load_si512(p); }
  static Code splat(std::uint32_t code) { return _mm512_set1_epi32(static_cast<int>(code)); }
  static Code subtract(Code x, Code y) { return _mm512_subs_epu8(x, y); }
  static Code max(Code x, Code y) { return _mm512_max_epu8(x, y); }

  static Code all(int code) { return _mm512_set1_epi8(static_cast<char>(code)); }
  /// Raises codes other than zero to `least`, which is less than twice the code of any FP16 number.
  static Code at_least(Code code, int least) {
    return max(code, _mm512_min_epu8(_mm512_adds_epu8(code, code), all(least)));
  }
#if defined(FP8LAB_ISA_avx512_fp16)
  /// Returns eight bits, from bit kBit on, of each float.
  template <int kBit>
  static Code fields(const float* c) {
    // Moves them from the two floats of a 64-bit element to a byte of each.
    constexpr long long kUpper = 0x0101010100000000ll * (32 + kBit), kLower = 0x01010101ll * kBit;
    const __m512i bits = _mm512_set1_epi64(kUpper | kLower);
    const auto part = [c](int v) { return _mm512_loadu_si512(c + 16 * v); };
    Code codes = kBit == 24 ? part(3) : _mm512_multishift_epi64_epi8(bits, part(3));  // in place
    codes = _mm512_mask_multishift_epi64_epi8(codes, 0x1111111111111111u, bits, part(0));
    codes = _mm512_mask_multishift_epi64_epi8(codes, 0x4444444444444444u, bits, part(1));
    return _mm512_mask_multishift_epi64_epi8(codes, 0x2222222222222222u, bits, part(2));
  }
  static Code exponents(const float* c) { return fields<23>(c); }
#else
  static Code exponents(const float* c) {
    // Puts the upper halves of two vectors side by side: sign, exponent, 7 bits of the mantissa.
    const auto upper = [c](int first, int second) {
      const __m512i low = _mm512_srli_epi32(_mm512_loadu_si512(c + 16 * first), 16);
      return _mm512_mask_blend_epi16(0xAAAAAAAAu, low, _mm512_loadu_si512(c + 16 * second));
    };
    const __m512i even = _mm512_srli_epi16(upper(0, 1), 7);
    const __m512i odd = _mm512_slli_epi16(upper(2, 3), 1);
    constexpr int kSelect = 0xCA;  // first ? second : third, bit by bit
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xFF), even, odd, kSelect);
  }
#endif
  static Code limit(Code top) {
    constexpr int kMost = Codes::kLimitOffset + Codes::kLimitMax;
    const Code bounded = _mm512_min_epu8(top, _mm512_set1_epi8(static_cast<char>(kMost)));
    return small_limit(bounded);
  }
  /// As limit(), for sums of E4M3 products, which stay below 2^44 up to K = 2^26.
  static Code small_limit(Code top) {
    return _mm512_sub_epi8(top, _mm512_set1_epi8(Codes::kLimitOffset - 128));
  }
  /// Returns the mask of lanes whose product is negative and has bits below the grid.
  static __mmask64 off_grid(Code low_a, Code low_b, Code limits) {
    return _mm512_cmpgt_epi8_mask(limits, _mm512_add_epi8(low_a, low_b));
  }
  /// Returns count + 1 for lanes off the grid.
  static Code count(Code counted, Code low_a, Code low_b, Code limits) {
    const __mmask64 mask = off_grid(low_a, low_b, limits);
    // Inline assembly, because GCC 12 copies the counter around every masked
    // addition of the intrinsic.
    __asm__("vpaddb %2, %0, %0 %{%1%}" : "+v"(counted) : "Yk"(mask), "v"(_mm512_set1_epi8(1)));
    return counted;
  }

  static Float load_values(const std::byte* p) {
    return in_register(_mm512_load_ps(reinterpret_cast<const float*>(p)));
  }
  static Float splat_value(const Real* p) { return _mm512_set1_ps(*p); }
  static Float multiply_add(Float a, Float b, Float y) { return _mm512_fmadd_ps(a, b, y); }

  static Float anchor(Code top, int v) {
    // Each field has 0x80 in the byte beside it. Rotated to bit 23, it has the sign bit 0 above and
    // mantissa bit 22 below. The other fields become further mantissa bits, which are whole units
    // and vanish with the anchor.
    const bool even = position(16 * v) % 2 == 0;
    const Code fields = _mm512_mask_adds_epu8(_mm512_set1_epi8(-128),
                                              even ? 0x5555555555555555u : 0xAAAAAAAAAAAAAAAAu, top,
                                              _mm512_set1_epi8(Codes::kAnchorOffset));
    const Code at = v == 0   ? _mm512_rol_epi32(fields, 23)
                    : v == 1 ? _mm512_rol_epi32(fields, 7)
                    : v == 2 ? _mm512_rol_epi32(fields, 15)
                             : _mm512_rol_epi32(fields, 31);
    return in_register(_mm512_castsi512_ps(at));
  }
  static Float start(Float anchor, const float* c, int v) {
    const Float term = _mm512_loadu_ps(c + 16 * v);
    const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(term));
    Float sum = _mm512_add_ps(anchor, term);
    // Inline assembly, because GCC 12 merges the intrinsic with the addition above
    // although their roundings differ.
    __asm__("vaddps %{ru-sae%}, %2, %1, %0 %{%3%}"
            : "+v"(sum)
            : "v"(anchor), "v"(term), "Yk"(negative));
    return sum;
  }
  /// Computes c = y - anchor plus the counted units: at most 24 bits, so exact for either output.
  template <bool>
  static void finish(Float y, Float anchor, Code counted, float* c, int v) {
    const __m512i pick = _mm512_set1_epi32(1 << 8 * position(16 * v));  // the byte of vector v
    const Float sum =
        _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(y), counted, pick));
    _mm512_storeu_ps(c + 16 * v, _mm512_sub_ps(sum, anchor));
  }
};

/// 32 columns of wide operands: 16-bit lanes, four vectors of 8 doubles.
struct WideLanes {
  using Float = __m512d;
  using Code = __m512i;
  static constexpr int kFloatLanes = 8;
  static constexpr int kColumns = 32;
  static constexpr int kRows = 3;
  static constexpr int kUnroll = 16;  ///< pairs of products

  /// Each quarter of a register holds the columns of the same quarter of all
  /// four vectors of doubles.
  static constexpr int position(int column) {
    return 8 * (column % 8 / 2) + 2 * (column / 8) + column % 2;
  }

  static Code load(const std::byte* p) { return _mm512_load_si512(p); }
  static Code splat(std::uint32_t code) { return _mm512_set1_epi32(static_cast<int>(code)); }
  static Code bytes(int code) { return _mm512_set1_epi8(static_cast<char>(code)); }
  static Code subtract_bytes(Code x, Code y) { return _mm512_subs_epu8(x, y); }
  static Code max_bytes(Code x, Code y) { return _mm512_max_epu8(x, y); }
  static Code larger_byte(Code pairs) {
    return _mm512_and_si512(_mm512_max_epu8(pairs, _mm512_srli_epi16(pairs, 8)), words(0xFF));
  }

  static Code words(int code) { return _mm512_set1_epi16(static_cast<short>(code)); }
  static Code add(Code x, Code y) { return _mm512_add_epi16(x, y); }
  static Code max(Code x, Code y) { return _mm512_max_epi16(x, y); }
  /// Raises fields of numbers other than zero to `least`, which is less than twice any such field.
  static Code at_least(Code fields, int least) {
    return max(fields, _mm512_min_epi16(add(fields, fields), words(least)));
  }
  static bool any_outside(Code fields, int least, int most) {
    const Code from_end = add(fields, words(32767 - most));  // beyond the end it is negative
    return _mm512_cmpgt_epi16_mask(words(32767 - most + least), from_end) != 0;
  }
  static Code replace_above(Code fields, int most, int by) {
    return _mm512_mask_blend_epi16(_mm512_cmpgt_epi16_mask(fields, words(most)), fields, words(by));
  }
  static Code differing(Code x, Code y) { return _mm512_xor_si512(x, y); }
  static Code count_ones(Code code) {
    const Code nibble = bytes(0x0F);
    const Code ones =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const Code low = _mm512_shuffle_epi8(ones, _mm512_and_si512(code, nibble));
    const Code high =
        _mm512_shuffle_epi8(ones, _mm512_and_si512(_mm512_srli_epi16(code, 4), nibble));
    return _mm512_maddubs_epi16(_mm512_add_epi8(low, high), bytes(1));
  }

  /// Returns the signs (bit 11) and exponent fields of 32 doubles.
  static Code fields_and_signs(const double* c) {
    return _mm512_packus_epi32(_mm512_srli_epi32(upper(c, c + 8), 20),
                               _mm512_srli_epi32(upper(c + 16, c + 24), 20));
  }
  static Code fields_of(Code code) { return _mm512_and_si512(code, words(0x7FF)); }
  static Code signs_of(Code code) { return _mm512_srli_epi16(code, 11); }

  static Float load_values(const double* p) { return in_register(_mm512_loadu_pd(p)); }
  static Float splat_value(const double* p) { return _mm512_set1_pd(*p); }
  static Float multiply_add(Float a, Float b, Float y) { return _mm512_fmadd_pd(a, b, y); }
  static Float subtract(Float x, Float y) { return _mm512_sub_pd(x, y); }
  static void store(double* p, Float x) { _mm512_storeu_pd(p, x); }

  /// Returns the upper words of anchors, 1.5 * 2^52 grid units, for the fields of common exponents.
  static Code anchor_words(Code fields) {
    return add(_mm512_slli_epi16(fields, 4), words(WideCodes::kAnchorOffset << 4 | 8));
  }
  static Float anchor(Code anchors, int v) {
    return _mm512_castsi512_pd(_mm512_shuffle_epi8(anchors, upper_word(4 * v)));
  }
  /// Anchors plus `units` grid units.
  class Starts {
   public:
    Starts(Code anchors, Code units)
        : low_(_mm512_unpacklo_epi16(units, anchors)),
          high_(_mm512_unpackhi_epi16(units, anchors)) {}
    Float vector(int v) const {
      return _mm512_castsi512_pd(_mm512_shuffle_epi8(v < 2 ? low_ : high_, both_ends(v % 2 * 8)));
    }

   private:
    Code low_, high_;
  };

  /// Truncates toward zero to the 24 bits of a normal number of FP32.
  static Float cut_to_f32(Float x) {
    return _mm512_and_pd(x, _mm512_castsi512_pd(_mm512_set1_epi64(-0x20000000)));
  }
  /// Converts to FP32: truncates (kCut), or rounds to odd for a second rounding to FP16.
  template <bool kCut>
  static void narrow(Float x, float* out) {
    const __m256 narrow = _mm512_cvtpd_ps(x);
    if constexpr (kCut) {
      _mm256_storeu_ps(out, _mm256_add_ps(narrow, _mm256_setzero_ps()));  // -0 becomes +0
    } else {
      const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(narrow), x, _CMP_NEQ_OQ);
      const __m256i bits = _mm256_castps_si256(narrow);
      const __m256i odd = _mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1));
      _mm256_storeu_ps(out, _mm256_castsi256_ps(odd));
    }
  }
  static Float widen(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }

 private:
  // Returns the upper halves of sixteen doubles.
  static Code upper(const double* first, const double* second) {
    return _mm512_castps_si512(
        _mm512_shuffle_ps(_mm512_loadu_ps(first), _mm512_loadu_ps(second), 0xDD));
  }
  // Moves bytes at, at + 1 and at + 2, at + 3 of each quarter to the upper
  // words of its 64-bit elements.
  static Code upper_word(int at) {
    const auto element = [](int from) {
      return static_cast<long long>(0x0000808080808080ull |
                                    static_cast<unsigned long long>((from + 1) << 8 | from) << 48);
    };
    return _mm512_setr_epi64(element(at), element(at + 2), element(at), element(at + 2),
                             element(at), element(at + 2), element(at), element(at + 2));
  }
  // Moves the words at `at` and after it to both ends of the 64-bit elements.
  static Code both_ends(int at) {
    const auto element = [](int from) {
      return static_cast<long long>(0x0000808080800000ull |
                                    static_cast<unsigned long long>((from + 3) << 8 | (from + 2))
                                        << 48 |
                                    static_cast<unsigned long long>((from + 1) << 8 | from));
    };
    return _mm512_setr_epi64(element(at), element(at + 4), element(at), element(at + 4),
                             element(at), element(at + 4), element(at), element(at + 4));
  }
};

/// 16 floats for FP32 fused multiply-adds.
struct F32Lanes {
  using Element = float;
  using Vector = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static Vector splat(float x) { return _mm512_set1_ps(x); }
  static Vector fused(Vector a, Vector b, Vector y) { return _mm512_fmadd_ps(a, b, y); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
};

/// 8 doubles for FP64 sums of products of FP32 values.
struct F64Lanes {
  using Element = double;
  using Vector = __m512d;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;
  static Vector load(const double* p) { return _mm512_loadu_pd(p); }
  static Vector splat(double x) { return _mm512_set1_pd(x); }
  static Vector fused(Vector a, Vector b, Vector y) { return _mm512_fmadd_pd(a, b, y); }
  static void store(double* p, Vector x) { _mm512_storeu_pd(p, x); }
};

/// Replaces FP32 numbers by the nearest FP16 ones, ties to even, in any rounding
/// mode. Replaces numbers too large for FP16 by `overflow` with their sign. Zeros
/// become +0; infinity and NaN stay.
struct F16Rounding {
  static constexpr int kLanes = 16;
  static void round(float* x, float overflow) {
    const __m512 values = _mm512_loadu_ps(x);
    const __m256i halves = _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 rounded = _mm512_add_ps(_mm512_cvtph_ps(halves), _mm512_setzero_ps());
    const __m512 magnitude = _mm512_abs_ps(values);
    const __mmask16 finite =
        _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
    const __mmask16 large =
        _mm512_mask_cmp_ps_mask(finite, magnitude, _mm512_set1_ps(65520.0f), _CMP_GE_OQ);
    const __m512i sign =
        _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(INT32_MIN));
    const __m512i replaced = _mm512_or_si512(sign, _mm512_castps_si512(_mm512_set1_ps(overflow)));
    _mm512_storeu_ps(x, _mm512_mask_blend_ps(large, rounded, _mm512_castsi512_ps(replaced)));
  }
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
