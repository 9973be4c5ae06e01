// Vector operations of the emulated GEMM on AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "emulation/cpu/simd/chain_codes.hpp"
#include "emulation/cpu/simd/wide_codes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

inline __m256i load_integers(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

/// 32 columns: bytes of exponents, four vectors of 8 floats.
struct Fp8Lanes {
  template <std::int64_t>
  using Counter = LaneCounter<Fp8Lanes>;
  using Codes = Fp8Codes;
  using Real = float;
  using Float = __m256;
  using Code = __m256i;
  static constexpr int kFloatLanes = 8;
  static constexpr int kRows = 4;
  static constexpr int kSumRows = 2;
  static constexpr bool kFewRegisters = true;

  static constexpr int position(int column) {
    return 16 * (column % 8 / 4) + 4 * (column / 8) + column % 4;
  }

  static void arrange(const Codes::Lane* columns, std::byte* lanes) {
    arrange_by_four<Fp8Lanes>(columns, lanes);
  }

  static Code zero() { return _mm256_setzero_si256(); }
  static Code load(const std::byte* p) { return load_integers(p); }
  static Code splat(std::uint32_t code) { return _mm256_set1_epi32(static_cast<int>(code)); }
  static Code subtract(Code x, Code y) { return _mm256_subs_epu8(x, y); }
  static Code max(Code x, Code y) { return _mm256_max_epu8(x, y); }

  static Code all(int code) { return _mm256_set1_epi8(static_cast<char>(code)); }
  /// Raises codes other than zero to `least`, which is less than twice the code of any FP16 number.
  static Code at_least(Code code, int least) {
    return max(code, _mm256_min_epu8(_mm256_adds_epu8(code, code), all(least)));
  }
  static Code exponents(const float* c) {
    __m256i field[4];
    for (int v = 0; v < 4; ++v) {
      field[v] = _mm256_srli_epi32(_mm256_slli_epi32(load_integers(c + 8 * v), 1), 24);
    }
    return _mm256_packus_epi16(_mm256_packus_epi32(field[0], field[1]),
                               _mm256_packus_epi32(field[2], field[3]));
  }
  static Code limit(Code top) {
    const Code distance = _mm256_subs_epu8(top, _mm256_set1_epi8(Codes::kLimitOffset));
    return _mm256_or_si256(_mm256_min_epu8(distance, _mm256_set1_epi8(Codes::kLimitMax)),
                           _mm256_set1_epi8(-128));
  }
  /// Returns count + 1 if the product is negative and has bits below the grid, lane by lane.
  static Code count(Code counted, Code low_a, Code low_b, Code limits) {
    return _mm256_sub_epi8(counted, _mm256_cmpgt_epi8(limits, _mm256_add_epi8(low_a, low_b)));
  }

  static Float load_values(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static Float splat_value(const Real* p) { return _mm256_broadcast_ss(p); }
  static Float multiply_add(Float a, Float b, Float y) { return _mm256_fmadd_ps(a, b, y); }

  static Float anchor(Code top, int v) {
    const Code field = _mm256_adds_epu8(top, _mm256_set1_epi8(Codes::kAnchorOffset));
    const Code at = _mm256_shuffle_epi8(field, bytes_to(v, 3));
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_srli_epi32(at, 1), _mm256_set1_epi32(0x00400000)));
  }
  static Float start(Float anchor, const float* c, int v) {
    const Float term = _mm256_loadu_ps(c + 8 * v);
    const Float sign = _mm256_and_ps(term, _mm256_set1_ps(-0.0f));
    const Float magnitude = _mm256_xor_ps(term, sign);
    const Float units = _mm256_sub_ps(_mm256_add_ps(anchor, magnitude), anchor);
    return _mm256_add_ps(anchor, _mm256_or_ps(units, sign));
  }
  /// Computes c = y - anchor plus the counted units: at most 24 bits, so exact for either output.
  template <bool>
  static void finish(Float y, Float anchor, Code counted, float* c, int v) {
    const __m256i units = _mm256_shuffle_epi8(counted, bytes_to(v, 0));
    const Float sum = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), units));
    _mm256_storeu_ps(c + 8 * v, _mm256_sub_ps(sum, anchor));
  }

 private:
  // Moves bytes 4v .. 4v+3 of every 128-bit lane to byte `place` of its four 32-bit elements.
  static Code bytes_to(int v, int place) {
    const int shift = 8 * place;
    const auto element = [&](int i) {
      const std::uint32_t others = 0x80808080u & ~(0xFFu << shift);
      return static_cast<int>(others | static_cast<std::uint32_t>(4 * v + i) << shift);
    };
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi32(element(0), element(1), element(2), element(3)));
  }
};

/// 16 columns of wide operands: 16-bit lanes, four vectors of 4 doubles.
struct WideLanes {
  using Float = __m256d;
  using Code = __m256i;
  static constexpr int kFloatLanes = 4;
  static constexpr int kColumns = 16;
  static constexpr int kRows = 2;
  static constexpr int kUnroll = 1;  ///< pairs of products

  /// Each half of a register holds the columns of the same half of all four vectors of doubles.
  static constexpr int position(int column) {
    return 8 * (column % 4 / 2) + 2 * (column / 4) + column % 2;
  }

  static Code load(const std::byte* p) { return load_integers(p); }
  static Code splat(std::uint32_t code) { return _mm256_set1_epi32(static_cast<int>(code)); }
  static Code bytes(int code) { return _mm256_set1_epi8(static_cast<char>(code)); }
  static Code subtract_bytes(Code x, Code y) { return _mm256_subs_epu8(x, y); }
  static Code max_bytes(Code x, Code y) { return _mm256_max_epu8(x, y); }
  static Code larger_byte(Code pairs) {
    return _mm256_and_si256(_mm256_max_epu8(pairs, _mm256_srli_epi16(pairs, 8)), words(0xFF));
  }

  static Code words(int code) { return _mm256_set1_epi16(static_cast<short>(code)); }
  static Code add(Code x, Code y) { return _mm256_add_epi16(x, y); }
  static Code max(Code x, Code y) { return _mm256_max_epi16(x, y); }
  /// Raises fields of numbers other than zero to `least`, which is less than twice any such field.
  static Code at_least(Code fields, int least) {
    return max(fields, _mm256_min_epi16(add(fields, fields), words(least)));
  }
  static bool any_outside(Code fields, int least, int most) {
    const Code from_end = add(fields, words(32767 - most));  // beyond the end it is negative
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(words(32767 - most + least), from_end)) != 0;
  }
  static Code replace_above(Code fields, int most, int by) {
    return _mm256_blendv_epi8(fields, words(by), _mm256_cmpgt_epi16(fields, words(most)));
  }
  static Code differing(Code x, Code y) { return _mm256_xor_si256(x, y); }
  static Code count_ones(Code code) {
    const Code nibble = bytes(0x0F);
    const Code ones =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const Code low = _mm256_shuffle_epi8(ones, _mm256_and_si256(code, nibble));
    const Code high =
        _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble));
    return _mm256_maddubs_epi16(_mm256_add_epi8(low, high), bytes(1));
  }

  /// Returns the signs (bit 11) and exponent fields of 16 doubles.
  static Code fields_and_signs(const double* c) {
    return _mm256_packus_epi32(_mm256_srli_epi32(upper(c, c + 4), 20),
                               _mm256_srli_epi32(upper(c + 8, c + 12), 20));
  }
  static Code fields_of(Code code) { return _mm256_and_si256(code, words(0x7FF)); }
  static Code signs_of(Code code) { return _mm256_srli_epi16(code, 11); }

  static Float load_values(const double* p) {
    Float values = _mm256_loadu_pd(p);
    __asm__("" : "+v"(values));
    return values;
  }
  static Float splat_value(const double* p) { return _mm256_broadcast_sd(p); }
  static Float multiply_add(Float a, Float b, Float y) { return _mm256_fmadd_pd(a, b, y); }
  static Float subtract(Float x, Float y) { return _mm256_sub_pd(x, y); }
  static void store(double* p, Float x) { _mm256_storeu_pd(p, x); }

  /// Returns the upper words of anchors, 1.5 * 2^52 grid units, for the fields of common exponents.
  static Code anchor_words(Code fields) {
    return add(_mm256_slli_epi16(fields, 4), words(WideCodes::kAnchorOffset << 4 | 8));
  }
  static Float anchor(Code anchors, int v) {
    return _mm256_castsi256_pd(_mm256_shuffle_epi8(anchors, upper_word(4 * v)));
  }
  /// Anchors plus `units` grid units.
  class Starts {
   public:
    Starts(Code anchors, Code units)
        : low_(_mm256_unpacklo_epi16(units, anchors)),
          high_(_mm256_unpackhi_epi16(units, anchors)) {}
    Float vector(int v) const {
      return _mm256_castsi256_pd(_mm256_shuffle_epi8(v < 2 ? low_ : high_, both_ends(v % 2 * 8)));
    }

   private:
    Code low_, high_;
  };

  /// Truncates toward zero to the 24 bits of a normal number of FP32.
  static Float cut_to_f32(Float x) {
    return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(-0x20000000)));
  }
  /// Converts to FP32: truncates (kCut), or rounds to odd for a second rounding to FP16.
  template <bool kCut>
  static void narrow(Float x, float* out) {
    const __m128 narrow = _mm256_cvtpd_ps(x);
    if constexpr (kCut) {
      _mm_storeu_ps(out, _mm_add_ps(narrow, _mm_setzero_ps()));  // -0 becomes +0
    } else {
      const __m256d inexact = _mm256_cmp_pd(_mm256_cvtps_pd(narrow), x, _CMP_NEQ_OQ);
      // Takes the lower halves of the four 64-bit masks.
      const __m256i words = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(inexact),
                                                        _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
      const __m128i odd = _mm_and_si128(_mm256_castsi256_si128(words), _mm_set1_epi32(1));
      _mm_storeu_ps(out, _mm_or_ps(narrow, _mm_castsi128_ps(odd)));
    }
  }
  static Float widen(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }

 private:
  // Returns the upper halves of eight doubles.
  static Code upper(const double* first, const double* second) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(first)),
                          _mm256_loadu_ps(reinterpret_cast<const float*>(second)), 0xDD));
  }
  // Moves bytes at, at + 1 and at + 2, at + 3 of each half to the upper
  // words of its 64-bit elements.
  static Code upper_word(int at) {
    const auto element = [](int from) {
      return static_cast<long long>(0x0000808080808080ull |
                                    static_cast<unsigned long long>((from + 1) << 8 | from) << 48);
    };
    return _mm256_setr_epi64x(element(at), element(at + 2), element(at), element(at + 2));
  }
  // Moves the words at `at` and after it to both ends of the 64-bit elements.
  static Code both_ends(int at) {
    const auto element = [](int from) {
      return static_cast<long long>(0x0000808080800000ull |
                                    static_cast<unsigned long long>((from + 3) << 8 | (from + 2))
                                        << 48 |
                                    static_cast<unsigned long long>((from + 1) << 8 | from));
    };
    return _mm256_setr_epi64x(element(at), element(at + 4), element(at), element(at + 4));
  }
};

/// 8 floats for FP32 fused multiply-adds.
struct F32Lanes {
  using Element = float;
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 3;
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static Vector splat(float x) { return _mm256_set1_ps(x); }
  static Vector fused(Vector a, Vector b, Vector y) { return _mm256_fmadd_ps(a, b, y); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
};

/// 4 doubles for FP64 sums of products of FP32 values.
struct F64Lanes {
  using Element = double;
  using Vector = __m256d;
  static constexpr int kLanes = 4;
  static constexpr int kRows = 3;
  static Vector load(const double* p) { return _mm256_loadu_pd(p); }
  static Vector splat(double x) { return _mm256_set1_pd(x); }
  static Vector fused(Vector a, Vector b, Vector y) { return _mm256_fmadd_pd(a, b, y); }
  static void store(double* p, Vector x) { _mm256_storeu_pd(p, x); }
};

/// Replaces FP32 numbers by the nearest FP16 ones, ties to even, in any rounding
/// mode. Replaces numbers too large for FP16 by `overflow` with their sign. Zeros
/// become +0; infinity and NaN stay.
struct F16Rounding {
  static constexpr int kLanes = 8;
  static void round(float* x, float overflow) {
    const __m256 values = _mm256_loadu_ps(x);
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 rounded = _mm256_add_ps(_mm256_cvtph_ps(halves), _mm256_setzero_ps());
    const __m256 sign = _mm256_and_ps(values, _mm256_set1_ps(-0.0f));
    const __m256 magnitude = _mm256_xor_ps(values, sign);
    const __m256 large =
        _mm256_and_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(65520.0f), _CMP_GE_OQ),
                      _mm256_cmp_ps(magnitude, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ));
    const __m256 replaced = _mm256_or_ps(sign, _mm256_set1_ps(overflow));
    _mm256_storeu_ps(x, _mm256_blendv_ps(rounded, replaced, large));
  }
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
