// Vector operations of the emulated GEMM on AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "emulation/cpu/simd/chain_codes.hpp"

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
  /// Codes other than zero raised to `least`: twice the code of any FP16 number exceeds it.
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
  /// count + 1 where the product is negative and has bits below the grid.
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
  /// c = y - anchor with the counted units: at most 24 bits, so exact for either output.
  template <bool>
  static void finish(Float y, Float anchor, Code counted, float* c, int v) {
    const __m256i units = _mm256_shuffle_epi8(counted, bytes_to(v, 0));
    const Float sum = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), units));
    _mm256_storeu_ps(c + 8 * v, _mm256_sub_ps(sum, anchor));
  }

 private:
  // Bytes 4v .. 4v+3 of every 128-bit lane to byte `place` of its four 32-bit elements.
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

/// 16 columns: 16-bit exponents, four vectors of 4 doubles.
struct Bf16Lanes {
  template <std::int64_t>
  using Counter = LaneCounter<Bf16Lanes>;
  using Codes = Bf16Codes;
  using Real = double;
  using Float = __m256d;
  using Code = __m256i;
  static constexpr int kFloatLanes = 4;
  static constexpr int kRows = 4;
  static constexpr int kSumRows = 2;
  static constexpr bool kFewRegisters = true;

  static constexpr int position(int column) {
    return 8 * (column % 8 / 4) + 4 * (column / 8) + column % 4;
  }

  static void arrange(const Codes::Lane* columns, std::byte* lanes) {
    arrange_by_four<Bf16Lanes>(columns, lanes);
  }

  static Code zero() { return _mm256_setzero_si256(); }
  static Code load(const std::byte* p) { return load_integers(p); }
  static Code splat(std::uint32_t code) { return _mm256_set1_epi32(static_cast<int>(code)); }
  static Code subtract(Code x, Code y) { return _mm256_subs_epu16(x, y); }
  static Code max(Code x, Code y) { return _mm256_max_epi16(x, y); }

  static Code all(int code) { return _mm256_set1_epi16(static_cast<short>(code)); }
  static Code at_least(Code code, int least) {
    return max(code, _mm256_min_epi16(_mm256_slli_epi16(code, 4), all(least)));
  }
  static Code exponents(const float* c) {
    __m256i field[2];
    for (int z = 0; z < 2; ++z) {
      const __m256i bits = _mm256_slli_epi32(load_integers(c + 8 * z), 1);
      const __m256i nonzero = _mm256_min_epu32(bits, _mm256_set1_epi32(1));
      field[z] = _mm256_srli_epi32(_mm256_max_epu32(bits, _mm256_slli_epi32(nonzero, 24)), 24);
    }
    const __m256i words = _mm256_packus_epi32(field[0], field[1]);
    return _mm256_min_epi16(_mm256_slli_epi16(words, 3),
                            _mm256_add_epi16(words, _mm256_set1_epi16(Codes::kAddendOffset)));
  }
  static Code limit(Code top) {
    return _mm256_add_epi16(top, _mm256_set1_epi16(Codes::kLimitOffset - 32768));
  }
  static Code count(Code counted, Code low_a, Code low_b, Code limits) {
    return _mm256_sub_epi16(counted, _mm256_cmpgt_epi16(limits, _mm256_add_epi16(low_a, low_b)));
  }

  static Float load_values(const std::byte* p) {
    return _mm256_loadu_pd(reinterpret_cast<const double*>(p));
  }
  static Float splat_value(const Real* p) { return _mm256_broadcast_sd(p); }
  static Float multiply_add(Float a, Float b, Float y) { return _mm256_fmadd_pd(a, b, y); }

  static Float anchor(Code top, int v) {
    const Code large = _mm256_cmpgt_epi16(top, _mm256_set1_epi16(Codes::kTooLarge - 1));
    const Code field =
        _mm256_blendv_epi8(_mm256_add_epi16(top, _mm256_set1_epi16(Codes::kAnchorOffset)),
                           _mm256_set1_epi16(0x7FF), large);
    const Code upper = _mm256_or_si256(_mm256_slli_epi16(field, 4), _mm256_set1_epi16(8));
    return _mm256_castsi256_pd(_mm256_slli_epi64(words_of(upper, v), 48));
  }
  static Float start(Float anchor, const float* c, int v) {
    const Float term = _mm256_cvtps_pd(_mm_loadu_ps(c + 4 * v));
    const Float sign = _mm256_and_pd(term, _mm256_set1_pd(-0.0));
    const Float magnitude = _mm256_xor_pd(term, sign);
    const Float units = _mm256_sub_pd(_mm256_add_pd(anchor, magnitude), anchor);
    return _mm256_add_pd(anchor, _mm256_or_pd(units, sign));
  }
  /// Likewise, cut to FP32 (kCut), or rounded to odd for a second rounding to FP16.
  template <bool kCut>
  static void finish(Float y, Float anchor, Code counted, float* c, int v) {
    const __m256i units = words_of(counted, v);
    const Float sum = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(y), units));
    const Float exact = _mm256_sub_pd(sum, anchor);
    const __m128 narrow = _mm256_cvtpd_ps(exact);
    if constexpr (kCut) {
      _mm_storeu_ps(c + 4 * v, _mm_add_ps(narrow, _mm_setzero_ps()));  // -0 becomes +0
    } else {
      const __m256d inexact = _mm256_cmp_pd(_mm256_cvtps_pd(narrow), exact, _CMP_NEQ_OQ);
      // The lower halves of the four 64-bit masks.
      const __m256i words = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(inexact),
                                                        _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
      const __m128i odd = _mm_and_si128(_mm256_castsi256_si128(words), _mm_set1_epi32(1));
      _mm_storeu_ps(c + 4 * v, _mm_or_ps(narrow, _mm_castsi128_ps(odd)));
    }
  }

 private:
  // The words of columns 4v .. 4v+3, zero-extended to 64 bits.
  static Code words_of(Code codes, int v) {
    const __m128i lane =
        v % 2 == 0 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
    return _mm256_cvtepu16_epi64(v / 2 == 0 ? lane : _mm_srli_si128(lane, 8));
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

/// Replaces FP32 numbers by the nearest FP16 ones, ties to even, in any rounding mode; those too
/// large by `overflow` with their sign. Zeros become +0; infinity and NaN stay.
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
