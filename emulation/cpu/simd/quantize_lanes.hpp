// Vector registers of elements, and encoders of their lanes. For the SIMD sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512BW__)
#include "emulation/cpu/simd/intrinsics.hpp"
#endif
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/nearest_codec.hpp"

/// Inlines into the innermost loops: a call would reload every constant of an encoder.
#define FP8LAB_INLINE inline __attribute__((always_inline))

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using numerics::Encoding;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;
using numerics::SpecialValues;

// Vectors of the widest register of the instruction set, in the compiler's portable notation.
#if defined(__AVX512BW__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kLanes = kRegisterBytes / 4;
constexpr int kPairLanes = 2 * kLanes;  ///< bf16 elements of a register
using Words = std::uint32_t __attribute__((vector_size(kRegisterBytes)));
using Ints = std::int32_t __attribute__((vector_size(kRegisterBytes)));
using Floats = float __attribute__((vector_size(kRegisterBytes)));
using Shorts = std::int16_t __attribute__((vector_size(kRegisterBytes)));
using HalfShorts = std::uint16_t __attribute__((vector_size(kRegisterBytes / 2)));
using QuarterBytes = std::uint8_t __attribute__((vector_size(kRegisterBytes / 4)));

constexpr std::uint32_t kSignBit = 0x80000000u;
constexpr std::uint32_t kExponentField = 0x7F800000u;

template <class Vector>
Vector load(const void* data) {
  Vector vector;
  std::memcpy(&vector, data, sizeof vector);
  return vector;
}

// Signed, because magnitudes are never negative and x86 compares signed integers.
inline Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }

template <bool kDivide>
FP8LAB_INLINE Floats scaled(Floats value, Floats factor) {
  if constexpr (kDivide) return value / factor;
  return value * factor;
}

// --- factors ---------------------------------------------------------------------------------

/// One factor for all elements (x - 0 is x, and broadcasts the scalar), or one factor for each.
struct OneFactor {
  float factor;
  static OneFactor at(const float* factors) { return {*factors}; }
  OneFactor from(std::int64_t) const { return *this; }
  Floats even() const { return factor - Floats{}; }
  Floats odd() const { return factor - Floats{}; }
  Floats straight() const { return factor - Floats{}; }
};

/// Returns the even (kOffset = 0) or odd lanes of a, then those of b.
template <class Vector, int kOffset, int... kIndex>
FP8LAB_INLINE Vector every_second(Vector a, Vector b, std::integer_sequence<int, kIndex...>) {
  return __builtin_shufflevector(a, b, (2 * kIndex + kOffset)...);
}
template <int kOffset, class Vector>
FP8LAB_INLINE Vector every_second(Vector a, Vector b) {
  return every_second<Vector, kOffset>(a, b, std::make_integer_sequence<int, kLanes>{});
}

struct FactorEach {
  const float* factors;
  static FactorEach at(const float* factors) { return {factors}; }
  FactorEach from(std::int64_t i) const { return {factors + i}; }
  Floats even() const { return pick<0>(); }
  Floats odd() const { return pick<1>(); }
  Floats straight() const { return load<Floats>(factors); }

 private:
  template <int kOffset>
  Floats pick() const {
    return every_second<kOffset>(load<Floats>(factors), load<Floats>(factors + kLanes));
  }
};

// --- encoders -----------------------------------------------------------------------------------
//
// An encoder maps FP32 lanes to words whose low 8 bits are the code; the upper bits are
// arbitrary. With kSignsApart it also offers codes without signs: adding the signs to four
// codes at once costs less.

/// Formats with a specialised encoder.
enum class SaturatingFormat : int { e4m3, e5m2, e2m3, e3m2, e2m1 };
constexpr int kSaturatingFormatCount = 5;
constexpr FormatSpec kSaturatingFormats[kSaturatingFormatCount] = {
    numerics::kE4M3, numerics::kE5M2, numerics::kE2M3, numerics::kE3M2, numerics::kE2M1};

/// Rounds to nearest even into a floating format of at most 8 bits, saturating: numerics::
/// NearestCodec on lanes, with compile-time constants. One FP32 addition of the power of two whose
/// unit in the last place is the grid spacing rounds the value, so that the low bits of the sum
/// count grid steps. The exponent adds 2^mantissa_bits for each binade above the subnormals. The
/// constant that removes the exponent's offset is even, and sits in the low bits of the addend.
template <SaturatingFormat kName, bool kFinite>
struct Saturating {
#if defined(__AVX512BW__)
  static constexpr bool kSignsApart = kFinite;
#else
  static constexpr bool kSignsApart = false;
#endif

  FP8LAB_INLINE Words operator()(Floats value) const {
#if defined(__AVX512BW__)
    if constexpr (kSignsApart) return with_sign((Ints)without_sign(value), value);
#endif
    const Ints magnitude = (Ints)value & 0x7FFFFFFF;
    const Ints clamped = smaller(magnitude, Ints{} + kLargest);
    const Ints grid = larger(clamped & 0x7F800000, Ints{} + kSmallestNormal);
    const Floats sum = (Floats)clamped + (Floats)(grid + ((kShift << 23) + kOffset));
    const Words result = with_sign((Ints)sum + (grid >> kShift), value);
    if constexpr (kFinite) return result;
    return (Words)(magnitude > 0x7F800000 ? Ints{} + kNaN : (Ints)result);
  }

#if defined(__AVX512BW__)
  /// Returns words whose low bits, below the sign, are the code. vrangeps and vpermd wait for the
  /// register that they overwrite (Golden Cove), so each overwrites its own operand. The table is
  /// not read by memcpy, because GCC 12 zeroes the upper half of a constant array.
  FP8LAB_INLINE static Words without_sign(Floats value) {
    alignas(64) static constexpr Table kTable = table();
    const __m512i addends = _mm512_load_si512(kTable.addends);
    Floats clamped = value;  // the smaller of the magnitudes
    __asm__("vrangeps $10, %1, %0, %0" : "+v"(clamped) : "v"((Floats)(Ints{} + kLargest)));
    Ints addend = larger((Ints)clamped, Ints{} + kSmallestNormal) >> 23;
    if constexpr (kBinades == 16) {
      __asm__("vpermd %1, %0, %0" : "+v"(addend) : "v"((Ints)addends));
    } else {
      const __m512i upper = _mm512_load_si512(kTable.addends + 16);
      addend = (Ints)_mm512_permutex2var_epi32(addends, (__m512i)addend, upper);
    }
    return (Words)(clamped + (Floats)addend);
  }

  /// Returns four codes in the bytes of each word: `codes` with the top bits
  /// of the bytes of `signs`.
  FP8LAB_INLINE static Words with_signs(Words codes, Words signs) {
    constexpr std::uint32_t kEach = 0x01010101u, kSignMask = kFormat.sign_mask();
    const Words shifted = kSignMask == 0x80 ? signs : signs >> (8 - kFormat.bits());
    const __m512i below = _mm512_set1_epi32(kEach * (kSignMask - 1));
    const auto bytes = (Words)_mm512_ternarylogic_epi32(below, (__m512i)codes, (__m512i)shifted,
                                                        0xCA);  // codes where `below`
    return kSignMask == 0x80 ? bytes : bytes & kEach * (2 * kSignMask - 1);
  }
#endif

 private:
  static constexpr FormatSpec kFormat = kSaturatingFormats[static_cast<int>(kName)];
  static constexpr auto kLargest =
      static_cast<std::int32_t>(numerics::decode_bits(kFormat, kFormat.max_finite_code()));
  static constexpr auto kNaN = static_cast<std::int32_t>(kFormat.nan_code());
  static constexpr auto kSign = static_cast<std::int32_t>(kFormat.sign_mask());
  static constexpr std::int32_t kShift = 23 - kFormat.mantissa_bits;
  static constexpr std::int32_t kSmallestNormal = (128 - kFormat.bias) << 23;
  static constexpr std::int32_t kOffset = -(kSmallestNormal >> kShift) & (kSign - 1);

  FP8LAB_INLINE static Words with_sign(Ints code, Floats value) {
    const Ints sign = (Ints)value >> (32 - kFormat.bits());
    return (Words)((code & (kSign - 1)) | (sign & (kSign == 0x80 ? ~0x7F : kSign)));
  }

#if defined(__AVX512BW__)
  /// The addend of each binade, with the binade's 2^mantissa_bits in its low bits. The index is the
  /// low bits of the exponent field, which distinguish all binades of the format.
  static constexpr int kBinades = kName == SaturatingFormat::e5m2 ? 32 : 16;
  struct Table {
    std::int32_t addends[kBinades];
  };
  static constexpr Table table() {
    Table result{};
    for (std::int32_t e = kSmallestNormal >> 23; e <= kLargest >> 23; ++e) {
      const std::int32_t grid = e << 23;
      result.addends[e % kBinades] =
          grid + (kShift << 23) + (grid >> kShift) - (kSmallestNormal >> kShift);
    }
    return result;
  }
  static_assert((kLargest >> 23) - (kSmallestNormal >> 23) < kBinades);
#endif
};

/// numerics::NearestCodec on lanes, for any signed format of at most 8 bits and
/// either treatment of overflow.
struct NearestAny : numerics::NearestCodec {
  static constexpr bool kSignsApart = false;

  using NearestCodec::NearestCodec;

  FP8LAB_INLINE Words operator()(Floats value) const {
    const Words bits = (Words)value;
    const Words magnitude = bits & ~kSignBit;
    const Words clamped = (Words)smaller((Ints)magnitude, (Ints)(Words{} + limit));
    const Words grid =
        (Words)larger((Ints)(clamped & kExponentField), (Ints)(Words{} + smallest_normal));
    const Words addend = grid + (shift << 23);
    const Words steps = (Words)((Floats)clamped + (Floats)addend) - addend;
    Words code = steps + ((grid - smallest_normal) >> shift);
    code = (Ints)code > static_cast<std::int32_t>(max_code) ? Words{} + overflow : code;
    // A negative integer is the complement plus one, which includes the sign bit.
    const Words minus = (Words)((Ints)bits >> 31) & negated;
    code = ((code ^ minus) - minus) & code_mask;
    const Words signed_codes = (Words)(code != 0) | zero_sign;
    code |= ((bits & kSignBit) & ~minus & signed_codes) >> sign_shift;
    return (Ints)magnitude > static_cast<std::int32_t>(kExponentField) ? Words{} + nan_code : code;
  }
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
