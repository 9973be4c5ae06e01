// Packs codes of several registers of elements side by side. For the SIMD sources only.
#pragma once

#include <type_traits>

#include "emulation/cpu/simd/quantize_lanes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Returns whether elements of T are encoded two registers at a time.
template <class T>
constexpr bool takes_two_registers() {
  return kRegisterBytes == 64 && std::is_same_v<T, std::uint16_t>;
}

#if defined(__AVX512BW__)

/// Returns `words` with the bytes of the mask replaced by their neighbours in `from`: byte 0 by 1,
/// 1 by 0, 2 by 3 and 3 by 2 of each word.
template <__mmask64 kMask>
FP8LAB_INLINE Words with_neighbours(Words words, Words from) {
  const __m512i index = _mm512_set4_epi32(0x0E0F0C0D, 0x0A0B0809, 0x06070405, 0x02030001);
  return (Words)_mm512_mask_shuffle_epi8((__m512i)words, kMask, (__m512i)from, index);
}
/// As above, with the bytes of the other half of each word: byte 0 by 2, 1 by 3, 2 by 0 and 3 by 1.
template <__mmask64 kMask>
FP8LAB_INLINE Words with_other_half(Words words, Words from) {
  const __m512i index = _mm512_set4_epi32(0x0D0C0F0E, 0x09080B0A, 0x05040706, 0x01000302);
  return (Words)_mm512_mask_shuffle_epi8((__m512i)words, kMask, (__m512i)from, index);
}
/// Returns the lower halves of the words of a and b, or the upper ones; a's become the lower half.
FP8LAB_INLINE Words lower_halves(Words a, Words b) {
  return with_other_half<0xCCCCCCCCCCCCCCCCu>(a, b);
}
FP8LAB_INLINE Words upper_halves(Words a, Words b) {
  return with_other_half<0x3333333333333333u>(b, a);
}
/// Returns bytes 1 and 3 of the words of a and b: a1 b1 a3 b3.
FP8LAB_INLINE Words odd_bytes(Words a, Words b) {
  return with_neighbours<0x5555555555555555u>(b, a);
}
/// Returns the low bytes of a, b, c and d side by side, a's lowest.
FP8LAB_INLINE Words side_by_side(Words a, Words b, Words c, Words d) {
  constexpr __mmask64 kByte1 = 0x2222222222222222u;
  return lower_halves(with_neighbours<kByte1>(a, b), with_neighbours<kByte1>(c, d));
}

template <class Encoder>
FP8LAB_INLINE Words unsigned_codes(Encoder encode, Floats values) {
  if constexpr (Encoder::kSignsApart) return encode.without_sign(values);
  return encode(values);
}

/// One factor for the first half of a register of bf16 elements, another for the second half.
struct FactorOfHalves {
  const float* factors;
  static FactorOfHalves at(const float* factors) { return {factors}; }
  Floats even() const { return spread(std::make_integer_sequence<int, kLanes>{}); }
  Floats odd() const { return even(); }

 private:
  template <int... kIndex>
  Floats spread(std::integer_sequence<int, kIndex...>) const {
    const auto two = (Floats)_mm512_broadcastq_epi64(_mm_loadu_si64(factors));
    return __builtin_shufflevector(two, two, (kIndex / (kLanes / 2))...);
  }
};

/// Encodes two registers of bf16 elements, each with its own factor.
template <bool kDivide, class Encoder, class Factor>
FP8LAB_INLINE void encode_two_vectors(const std::uint16_t* x, Encoder encode, Factor first,
                                      Factor second, std::uint8_t* codes) {
  const Words a = load<Words>(x), b = load<Words>(x + kPairLanes);
  const auto even = [&](Words pairs, Factor factor) {
    return unsigned_codes(encode, scaled<kDivide>((Floats)(pairs << 16), factor.even()));
  };
  const auto odd = [&](Words pairs, Factor factor) {
    return unsigned_codes(encode, scaled<kDivide>((Floats)(pairs & 0xFFFF0000u), factor.odd()));
  };
  Words bytes = side_by_side(even(a, first), even(b, second), odd(a, first), odd(b, second));
  if constexpr (Encoder::kSignsApart) bytes = encode.with_signs(bytes, odd_bytes(a, b));
  // Puts in each 128-bit lane the bytes of a before those of b, then orders
  // the halves of all lanes.
  const __m512i apart = _mm512_shuffle_epi8(
      (__m512i)bytes, _mm512_set4_epi32(0x0F0D0B09, 0x07050301, 0x0E0C0A08, 0x06040200));
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi64(order, apart));
}

#endif

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
