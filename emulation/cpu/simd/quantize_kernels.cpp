#include "emulation/cpu/simd/quantize_kernels.hpp"

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "emulation/cpu/simd/byte_transpose.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/philox.hpp"

/// In the innermost loops: a call would reload every constant of an encoder.
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
Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
Ints larger(Ints a, Ints b) { return a > b ? a : b; }

// --- amax ---------------------------------------------------------------------------------------

/// Largest of the magnitudes in `lanes`, which are never negative.
std::uint32_t largest_lane(Shorts lanes) {
  std::int16_t values[kPairLanes];
  std::memcpy(values, &lanes, sizeof values);
  std::int16_t largest = 0;
  for (const std::int16_t value : values) largest = value > largest ? value : largest;
  return static_cast<std::uint32_t>(largest) << 16;
}

std::uint32_t magnitude_max(const std::uint16_t* x, std::int64_t n) {
  Shorts largest{};
  std::int64_t i = 0;
  for (; i + kPairLanes <= n; i += kPairLanes) {
    const Shorts magnitude = load<Shorts>(x + i) & static_cast<std::int16_t>(0x7FFF);
    largest = magnitude > largest ? magnitude : largest;
  }
  std::uint32_t result = largest_lane(largest);
  for (; i < n; ++i) {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(x[i] & 0x7FFFu) << 16;
    result = magnitude > result ? magnitude : result;
  }
  return result;
}

std::uint32_t magnitude_max(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<std::int32_t>(float_bits(x[i]) & ~kSignBit);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

/// Column maxima over all rows of the block, for tiles one column wide.
constexpr std::int64_t kColumnChunk = 512;

void column_max(const std::uint16_t* x, const SourceBlock& block, std::uint32_t* amax) {
  for (std::int64_t first = 0; first < block.cols; first += kColumnChunk) {
    const std::int64_t rest = block.cols - first;
    const std::int64_t n = rest < kColumnChunk ? rest : kColumnChunk;
    std::int16_t largest[kColumnChunk] = {};
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const std::uint16_t* row = x + r * block.row_stride + first;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto magnitude = static_cast<std::int16_t>(row[i] & 0x7FFF);
        largest[i] = magnitude > largest[i] ? magnitude : largest[i];
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t magnitude = static_cast<std::uint32_t>(largest[i]) << 16;
      amax[first + i] = magnitude > amax[first + i] ? magnitude : amax[first + i];
    }
  }
}

void column_max(const float* x, const SourceBlock& block, std::uint32_t* amax) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float* row = x + r * block.row_stride;
    for (std::int64_t i = 0; i < block.cols; ++i) {
      const std::uint32_t magnitude = float_bits(row[i]) & ~kSignBit;
      amax[i] = magnitude > amax[i] ? magnitude : amax[i];
    }
  }
}

template <class T>
void block_amax(const T* x, const SourceBlock& block, std::uint32_t* amax) {
  if (block.tile_width == 1) return column_max(x, block, amax);
  const std::int64_t width = block.tile_width;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const T* row = x + r * block.row_stride;
    for (std::int64_t start = 0, j = 0; start < block.cols; start += width, ++j) {
      const std::int64_t rest = block.cols - start;
      // A constant count lets the common tile be unrolled into straight vector code.
      const std::uint32_t magnitude = width == 128 && rest >= 128
                                          ? magnitude_max(row + start, 128)
                                          : magnitude_max(row + start, rest < width ? rest : width);
      amax[j] = magnitude > amax[j] ? magnitude : amax[j];
    }
  }
}

void amax(const SourceBlock* block, std::uint32_t* result) {
  if (block->bf16) {
    block_amax(static_cast<const std::uint16_t*>(block->data), *block, result);
  } else {
    block_amax(static_cast<const float*>(block->data), *block, result);
  }
}

// --- encoders -----------------------------------------------------------------------------------
//
// An encoder maps FP32 lanes to words whose low 8 bits are the code; the bits above are arbitrary.

constexpr std::uint32_t nan_code_of(const FormatSpec& format) {
  return format.specials == SpecialValues::none ? format.max_finite_code() : format.nan_code();
}

/// Formats with an encoder of their own.
enum class SaturatingFormat : int { e4m3, e5m2, e2m3, e3m2, e2m1 };
constexpr int kSaturatingFormatCount = 5;
constexpr FormatSpec kSaturatingFormats[kSaturatingFormatCount] = {
    numerics::kE4M3, numerics::kE5M2, numerics::kE2M3, numerics::kE3M2, numerics::kE2M1};

/// Round to nearest even into a floating format of at most 8 bits, saturating; numerics::
/// to_fp8_saturating on lanes for the 8-bit ones. One FP32 addition of the power of two whose unit
/// in the last place is the grid spacing rounds the value, so that the low bits of the sum count
/// grid steps; the exponent adds 2^mantissa_bits for each binade above the subnormals. The even
/// constant that takes off the exponent's offset rides in the low bits of the addend.
template <SaturatingFormat kName, bool kFinite>
struct Saturating {
  FP8LAB_INLINE Words operator()(Floats value) const {
    constexpr std::int32_t kShift = 23 - kFormat.mantissa_bits;
    constexpr std::int32_t kSmallestNormal = (128 - kFormat.bias) << 23;
    constexpr auto kSign = static_cast<std::int32_t>(kFormat.sign_mask());
    constexpr std::int32_t kOffset = -(kSmallestNormal >> kShift) & (kSign - 1);
    const Ints bits = (Ints)value;
    const Ints magnitude = bits & 0x7FFFFFFF;
    const Ints clamped = smaller(magnitude, Ints{} + kLargest);
    const Ints grid = larger(clamped & 0x7F800000, Ints{} + kSmallestNormal);
    const Floats sum = (Floats)clamped + (Floats)(grid + ((kShift << 23) + kOffset));
    const Ints code = (Ints)sum + (grid >> kShift);
    const Ints sign = bits >> (32 - kFormat.bits());
    const Ints result = (code & (kSign - 1)) | (sign & (kSign == 0x80 ? ~0x7F : kSign));
    if constexpr (kFinite) return (Words)result;
    return (Words)(magnitude > 0x7F800000 ? Ints{} + kNaN : result);
  }

 private:
  static constexpr FormatSpec kFormat = kSaturatingFormats[static_cast<int>(kName)];
  static constexpr auto kLargest =
      static_cast<std::int32_t>(numerics::decode_bits(kFormat, kFormat.max_finite_code()));
  static constexpr auto kNaN = static_cast<std::int32_t>(nan_code_of(kFormat));
};

/// Round to nearest even into any signed format of at most 8 bits, with either treatment of
/// overflow: the same with its constants held in lanes.
struct NearestAny {
  std::uint32_t shift;            ///< FP32 mantissa bits dropped
  std::uint32_t smallest_normal;  ///< FP32 bits
  std::uint32_t limit;            ///< FP32 bits; anything above has the same code
  std::uint32_t max_code, overflow_code, nan_code;
  std::uint32_t sign_shift;  ///< from bit 31 to the sign of the code
  std::uint32_t negated;     ///< mask of the bits that a minus sign inverts, all for integers
  std::uint32_t code_mask;

  NearestAny(const FormatSpec& format, Overflow overflow)
      : shift(static_cast<std::uint32_t>(23 - format.mantissa_bits)),
        smallest_normal(static_cast<std::uint32_t>(127 + format.min_exponent()) << 23),
        limit(static_cast<std::uint32_t>(128 + format.max_exponent()) << 23),
        max_code(format.max_finite_code()),
        overflow_code(numerics::overflow_code(format, overflow)),
        nan_code(nan_code_of(format)),
        sign_shift(static_cast<std::uint32_t>(32 - format.bits())),
        negated(format.encoding == Encoding::twos_complement ? ~0u : 0u),
        code_mask(2u * format.sign_mask() - 1u) {}

  /// The addends up to 2^(max exponent + 1 + shift) must be normal FP32 values.
  static bool applies(const FormatSpec& format) {
    return format.encoding != Encoding::logarithmic && format.min_exponent() >= -126 &&
           format.max_exponent() + 1 + 23 - format.mantissa_bits <= 127;
  }

  FP8LAB_INLINE Words operator()(Floats value) const {
    const Words bits = (Words)value;
    const Words magnitude = bits & ~kSignBit;
    const Words clamped = (Words)smaller((Ints)magnitude, (Ints)(Words{} + limit));
    const Words grid =
        (Words)larger((Ints)(clamped & kExponentField), (Ints)(Words{} + smallest_normal));
    const Words addend = grid + (shift << 23);
    const Words steps = (Words)((Floats)clamped + (Floats)addend) - addend;
    Words code = steps + ((grid - smallest_normal) >> shift);
    code = (Ints)code > static_cast<std::int32_t>(max_code) ? Words{} + overflow_code : code;
    // A negative integer is the complement plus one, and has the sign bit by itself.
    const Words minus = (Words)((Ints)bits >> 31) & negated;
    code = ((code ^ minus) - minus) & code_mask;
    code |= ((bits & kSignBit) & ~minus) >> sign_shift;
    return (Ints)magnitude > static_cast<std::int32_t>(kExponentField) ? Words{} + nan_code : code;
  }
};

// --- vectors of elements ------------------------------------------------------------------------

/// One factor for all elements (x - 0 is x, and spreads the scalar), or one for each.
struct OneFactor {
  float factor;
  OneFactor from(std::int64_t) const { return *this; }
  Floats even() const { return factor - Floats{}; }
  Floats odd() const { return factor - Floats{}; }
  Floats straight() const { return factor - Floats{}; }
};

template <int kOffset, int... kIndex>
Floats every_second(Floats low, Floats high, std::integer_sequence<int, kIndex...>) {
  return __builtin_shufflevector(low, high, (2 * kIndex + kOffset)...);
}

struct FactorEach {
  const float* factors;
  FactorEach from(std::int64_t i) const { return {factors + i}; }
  Floats even() const { return pick<0>(); }
  Floats odd() const { return pick<1>(); }
  Floats straight() const { return load<Floats>(factors); }

 private:
  template <int kOffset>
  Floats pick() const {
    return every_second<kOffset>(load<Floats>(factors), load<Floats>(factors + kLanes),
                                 std::make_integer_sequence<int, kLanes>{});
  }
};

template <bool kDivide>
Floats scaled(Floats value, Floats factor) {
  if constexpr (kDivide) return value / factor;
  return value * factor;
}

/// A register of bf16 elements. Even elements are the low halves of its words and odd ones the high
/// halves: widening them costs a shift or a mask, and their codes end up as neighbouring bytes.
template <bool kDivide, class Encoder, class Factor>
FP8LAB_INLINE void encode_vector(const std::uint16_t* x, Encoder encode, Factor factor,
                                 std::uint8_t* codes) {
  const Words pairs = load<Words>(x);
  const Words even = encode(scaled<kDivide>((Floats)(pairs << 16), factor.even()));
  const Words odd = encode(scaled<kDivide>((Floats)(pairs & 0xFFFF0000u), factor.odd()));
  const Words joined = (even & 0xFFu) | (odd << 8);
  const HalfShorts packed = __builtin_convertvector(joined, HalfShorts);
  std::memcpy(codes, &packed, sizeof packed);
}

template <bool kDivide, class Encoder, class Factor>
FP8LAB_INLINE void encode_vector(const float* x, Encoder encode, Factor factor,
                                 std::uint8_t* codes) {
  // Masked: of words whose upper bits matter GCC narrows the elements one by one.
  const Words words = encode(scaled<kDivide>(load<Floats>(x), factor.straight())) & 0xFFu;
  const QuarterBytes packed = __builtin_convertvector(words, QuarterBytes);
  std::memcpy(codes, &packed, sizeof packed);
}

constexpr std::int64_t step_of(const std::uint16_t*) { return kPairLanes; }
constexpr std::int64_t step_of(const float*) { return kLanes; }

/// n elements; the rest of a register goes through a padded copy.
template <bool kDivide, class T, class Encoder, class Factor>
FP8LAB_INLINE void encode_run(const T* x, std::int64_t n, Encoder encode, Factor factor,
                              std::int64_t prefetch, std::uint8_t* codes) {
  constexpr std::int64_t kStep = step_of(static_cast<const T*>(nullptr));
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(x + i) + prefetch, 0, 2);
    encode_vector<kDivide>(x + i, encode, factor.from(i), codes + i);
  }
  if (i == n) return;
  T rest[kStep] = {};
  std::uint8_t rest_codes[kStep];
  const auto count = static_cast<std::size_t>(n - i);
  std::memcpy(rest, x + i, count * sizeof(T));
  if constexpr (std::is_same_v<Factor, OneFactor>) {
    encode_vector<kDivide>(rest, encode, factor, rest_codes);
  } else {
    float rest_factors[kStep] = {};
    std::memcpy(rest_factors, factor.factors + i, count * sizeof(float));
    encode_vector<kDivide>(rest, encode, FactorEach{rest_factors}, rest_codes);
  }
  std::memcpy(codes + i, rest_codes, count);
}

constexpr std::int64_t kNarrowChunk = 256;

/// Tiles narrower than a few registers: their factors are spread out first.
template <bool kDivide, class T, class Encoder>
void encode_narrow(const T* x, const SourceBlock& block, Encoder encode, std::uint8_t* codes,
                   std::int64_t code_stride) {
  float factors[kNarrowChunk];
  for (std::int64_t first = 0; first < block.cols; first += kNarrowChunk) {
    const std::int64_t rest = block.cols - first;
    const std::int64_t n = rest < kNarrowChunk ? rest : kNarrowChunk;
    for (std::int64_t i = 0; i < n; ++i) {
      factors[i] = block.factors[(first + i) / block.tile_width];
    }
    for (std::int64_t r = 0; r < block.rows; ++r) {
      encode_run<kDivide>(x + r * block.row_stride + first, n, encode, FactorEach{factors},
                          block.prefetch, codes + r * code_stride + first);
    }
  }
}

/// The whole tiles of a row, and how many elements they are.
template <std::int64_t kWidth, bool kDivide, class T, class Encoder>
FP8LAB_INLINE std::int64_t encode_tiles(const T* x, const SourceBlock& block, Encoder encode,
                                        std::uint8_t* codes) {
  const float* factor = block.factors;
  std::int64_t start = 0;
  for (; start + kWidth <= block.cols; start += kWidth, ++factor) {
    encode_run<kDivide>(x + start, kWidth, encode, OneFactor{*factor}, block.prefetch,
                        codes + start);
  }
  return start;
}

template <bool kDivide, class T, class Encoder>
void encode_block(const T* x, const SourceBlock& block, Encoder encode, std::uint8_t* codes,
                  std::int64_t code_stride) {
  const std::int64_t width = block.tile_width;
  if (width > 1 && width < 32 && width < block.cols) {
    return encode_narrow<kDivide>(x, block, encode, codes, code_stride);
  }
  for (std::int64_t r = 0; r < block.rows; ++r, x += block.row_stride, codes += code_stride) {
    if (width == 1) {
      encode_run<kDivide>(x, block.cols, encode, FactorEach{block.factors}, block.prefetch, codes);
      continue;
    }
    const float* factor = block.factors;
    std::int64_t start = 0;
    // A constant count lets the common tiles be unrolled into straight vector code.
    if (width == 128) start = encode_tiles<128, kDivide>(x, block, encode, codes);
    if (width == 32) start = encode_tiles<32, kDivide>(x, block, encode, codes);
    for (factor += start / width; start < block.cols; start += width, ++factor) {
      const std::int64_t rest = block.cols - start;
      encode_run<kDivide>(x + start, rest < width ? rest : width, encode, OneFactor{*factor},
                          block.prefetch, codes + start);
    }
  }
}

template <class Encoder>
void encode_with(Encoder encode, bool divide, const SourceBlock& block, std::uint8_t* codes,
                 std::int64_t code_stride) {
  const auto* bf16 = static_cast<const std::uint16_t*>(block.data);
  const auto* f32 = static_cast<const float*>(block.data);
  if (block.bf16) {
    divide ? encode_block<true>(bf16, block, encode, codes, code_stride)
           : encode_block<false>(bf16, block, encode, codes, code_stride);
  } else {
    divide ? encode_block<true>(f32, block, encode, codes, code_stride)
           : encode_block<false>(f32, block, encode, codes, code_stride);
  }
}

/// Every other rounding and format, element by element by the definition itself.
void encode_by_definition(const EncodeRule& rule, const FormatSpec& format,
                          const RandomStream& random, const SourceBlock& block, std::uint8_t* codes,
                          std::int64_t code_stride) {
  const auto rounding = static_cast<Rounding>(rule.rounding);
  const auto overflow = static_cast<Overflow>(rule.overflow);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    for (std::int64_t i = 0; i < block.cols; ++i) {
      const std::int64_t at = r * block.row_stride + i;
      const float x = block.bf16
                          ? numerics::from_bf16(static_cast<const std::uint16_t*>(block.data)[at])
                          : static_cast<const float*>(block.data)[at];
      const float factor = block.factors[i / block.tile_width];
      std::uint32_t bits = 0;
      if (rounding == Rounding::stochastic) {
        bits = numerics::random_bits(random.seed, random.step, random.tensor, random.orientation,
                                     block.first_index +
                                         static_cast<std::uint64_t>(r) * block.index_stride +
                                         static_cast<std::uint64_t>(i));
      }
      codes[r * code_stride + i] = static_cast<std::uint8_t>(numerics::encode(
          format, float_bits(rule.divide ? x / factor : x * factor), rounding, overflow, bits));
    }
  }
}

template <SaturatingFormat kName>
void encode_fp8(bool divide, const SourceBlock& block, std::uint8_t* codes,
                std::int64_t code_stride) {
  if (block.finite) {
    encode_with(Saturating<kName, true>{}, divide, block, codes, code_stride);
  } else {
    encode_with(Saturating<kName, false>{}, divide, block, codes, code_stride);
  }
}

void encode_saturating(SaturatingFormat format, bool divide, const SourceBlock& block,
                       std::uint8_t* codes, std::int64_t code_stride) {
  using Name = SaturatingFormat;
  switch (format) {
    case Name::e4m3: return encode_fp8<Name::e4m3>(divide, block, codes, code_stride);
    case Name::e5m2: return encode_fp8<Name::e5m2>(divide, block, codes, code_stride);
    case Name::e2m3:
      return encode_with(Saturating<Name::e2m3, false>{}, divide, block, codes, code_stride);
    case Name::e3m2:
      return encode_with(Saturating<Name::e3m2, false>{}, divide, block, codes, code_stride);
    case Name::e2m1:
      return encode_with(Saturating<Name::e2m1, false>{}, divide, block, codes, code_stride);
  }
}

void encode(const EncodeRule* rule, const RandomStream* random, const SourceBlock* block,
            std::uint8_t* codes, std::int64_t code_stride) {
  const auto encoding = static_cast<Encoding>(rule->encoding);
  const FormatSpec format{rule->exponent_bits,
                          rule->mantissa_bits,
                          rule->bias,
                          static_cast<SpecialValues>(rule->specials),
                          true,
                          encoding != Encoding::logarithmic,
                          encoding};
  const auto overflow = static_cast<Overflow>(rule->overflow);
  const bool nearest = static_cast<Rounding>(rule->rounding) == Rounding::nearest;
  if (nearest && overflow == Overflow::saturate) {
    for (int i = 0; i < kSaturatingFormatCount; ++i) {
      if (format != kSaturatingFormats[i]) continue;
      const auto name = static_cast<SaturatingFormat>(i);
      return encode_saturating(name, rule->divide, *block, codes, code_stride);
    }
  }
  if (nearest && NearestAny::applies(format)) {
    encode_with(NearestAny(format, overflow), rule->divide, *block, codes, code_stride);
  } else {
    encode_by_definition(*rule, format, *random, *block, codes, code_stride);
  }
}

}  // namespace

extern const QuantizeKernels kQuantize;
const QuantizeKernels kQuantize = {
    .amax = amax,
    .encode = encode,
    .transpose_bytes = transpose_bytes<kRegisterBytes>,
};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
