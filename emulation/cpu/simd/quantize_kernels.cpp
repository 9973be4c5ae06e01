#include "emulation/cpu/simd/quantize_kernels.hpp"

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "emulation/cpu/simd/byte_transpose.hpp"
#include "emulation/cpu/simd/code_bytes.hpp"
#include "emulation/cpu/simd/quantize_lanes.hpp"
#include "emulation/cpu/simd/tile_amax.hpp"
#include "emulation/cpu/simd/transposed_codes.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

// --- vectors of elements ------------------------------------------------------------------------

/// Encodes a register of bf16 elements. Even elements are the low halves of its words and
/// odd ones the high halves: widening them takes one shift or mask, and their codes
/// become neighbouring bytes.
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
  // Masked, because GCC narrows elements one by one if the upper bits of the words matter.
  const Words words = encode(scaled<kDivide>(load<Floats>(x), factor.straight())) & 0xFFu;
  const QuarterBytes packed = __builtin_convertvector(words, QuarterBytes);
  std::memcpy(codes, &packed, sizeof packed);
}

constexpr std::int64_t step_of(const std::uint16_t*) { return kPairLanes; }
constexpr std::int64_t step_of(const float*) { return kLanes; }

/// Encodes n elements; the rest of a register goes through a padded copy.
template <bool kDivide, class T, class Encoder, class Factor>
FP8LAB_INLINE void encode_run(const T* x, std::int64_t n, Encoder encode, Factor factor,
                              const T* next, std::uint8_t* codes) {
  constexpr std::int64_t kStep = step_of(static_cast<const T*>(nullptr));
  std::int64_t i = 0;
#if defined(__AVX512BW__)
  if constexpr (takes_two_registers<T>()) {
    for (; i + 2 * kStep <= n; i += 2 * kStep) {
      __builtin_prefetch(next + i, 0, 2);
      __builtin_prefetch(next + i + kStep, 0, 2);
      encode_two_vectors<kDivide>(x + i, encode, factor.from(i), factor.from(i + kStep), codes + i);
    }
  }
#endif
  for (; i + kStep <= n; i += kStep) {
    __builtin_prefetch(next + i, 0, 2);
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

template <std::int64_t kWidth>
FP8LAB_INLINE void spread(const float* factors, std::int64_t n, std::int64_t width, float* each) {
  for (std::int64_t i = 0; i < n; i += width, ++factors) {
    const std::int64_t count = kWidth > 0 ? kWidth : n - i < width ? n - i : width;
    for (std::int64_t k = 0; k < count; ++k) each[i + k] = *factors;
  }
}

/// Encodes tiles narrower than a few registers, after expanding their factors to one per element.
template <bool kDivide, class T, class Encoder>
void encode_narrow(const T* x, const SourceBlock& block, Encoder encode, const CodeBlock& codes) {
  const std::int64_t width = block.tile_width;
  const std::int64_t chunk = kNarrowChunk / width * width;
  float factors[kNarrowChunk];
  for (std::int64_t first = 0; first < block.cols; first += chunk) {
    const std::int64_t rest = block.cols - first;
    const std::int64_t n = rest < chunk ? rest : chunk;
    if (width == 16 && n == chunk) {
      spread<16>(block.factors + first / width, n, width, factors);
    } else {
      spread<0>(block.factors + first / width, n, width, factors);
    }
    const T* next = static_cast<const T*>(block.next) + first;
    for (std::int64_t r = 0; r < block.rows; ++r) {
      encode_run<kDivide>(x + r * block.row_stride + first, n, encode, FactorEach{factors},
                          next + r * block.next_stride, codes.data + r * codes.stride + first);
    }
  }
}

/// Encodes a row's whole tiles of kWidth columns; returns the number of their elements. A constant
/// count lets the compiler unroll the loop into straight vector code.
template <std::int64_t kWidth, bool kDivide, class T, class Encoder>
FP8LAB_INLINE std::int64_t encode_tiles(const T* x, const SourceBlock& block, Encoder encode,
                                        const T* next, std::uint8_t* codes) {
  const float* factor = block.factors;
  std::int64_t i = 0;
  for (; i + kWidth <= block.cols; i += kWidth, ++factor) {
    encode_run<kDivide>(x + i, kWidth, encode, OneFactor{*factor}, next + i, codes + i);
  }
  return i;
}

/// As above for tiles of at most 32 columns; encodes some or none of them. Tiles that fill
/// registers are encoded two registers at a time.
template <bool kDivide, class T, class Encoder>
FP8LAB_INLINE std::int64_t encode_narrow_tiles(const T* x, const SourceBlock& block, Encoder encode,
                                               const T* next, std::uint8_t* codes) {
#if defined(__AVX512BW__)
  if constexpr (takes_two_registers<T>()) {
    std::int64_t i = 0;
    const auto encode_with = [&](auto at, std::int64_t tiles) {
      const float* factor = block.factors;
      for (; i + 2 * kPairLanes <= block.cols; i += 2 * kPairLanes, factor += 2 * tiles) {
        __builtin_prefetch(next + i, 0, 2);
        __builtin_prefetch(next + i + kPairLanes, 0, 2);
        encode_two_vectors<kDivide>(x + i, encode, at(factor), at(factor + tiles), codes + i);
      }
    };
    if (block.tile_width == 32) encode_with(OneFactor::at, 1);
    if (block.tile_width == 16) encode_with(FactorOfHalves::at, 2);
    return i;
  }
#endif
  return block.tile_width == 32 ? encode_tiles<32, kDivide>(x, block, encode, next, codes) : 0;
}

template <bool kDivide, class T, class Encoder>
FP8LAB_INLINE void encode_row(const T* x, const SourceBlock& block, Encoder encode, const T* next,
                              std::uint8_t* codes) {
  const std::int64_t width = block.tile_width;
  if (width == 1) {
    return encode_run<kDivide>(x, block.cols, encode, FactorEach{block.factors}, next, codes);
  }
  std::int64_t i = 0;
  if (width == 128) i = encode_tiles<128, kDivide>(x, block, encode, next, codes);
  if (width <= 32) i = encode_narrow_tiles<kDivide>(x, block, encode, next, codes);
  for (const float* factor = block.factors + i / width; i < block.cols; i += width, ++factor) {
    const std::int64_t rest = block.cols - i;
    encode_run<kDivide>(x + i, rest < width ? rest : width, encode, OneFactor{*factor}, next + i,
                        codes + i);
  }
}

/// Encodes rows that all lie in the same tiles.
template <bool kDivide, class T, class Encoder>
void encode_row_of_tiles(const T* x, const SourceBlock& block, Encoder encode, CodeBlock codes) {
  const std::int64_t width = block.tile_width;
  const bool by_rows = takes_two_registers<T>() && width == 16;
  if (width > 1 && width < 32 && width < block.cols && !by_rows) {
    return encode_narrow<kDivide>(x, block, encode, codes);
  }
  const T* next = static_cast<const T*>(block.next);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    encode_row<kDivide>(x, block, encode, next, codes.data);
    x += block.row_stride;
    next += block.next_stride;
    codes.data += codes.stride;
  }
}

/// Returns a part of a block. In each direction it begins a tile or lies within one.
SourceBlock part_of(const SourceBlock& block, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols) {
  SourceBlock part = block;
  const std::int64_t size = block.bf16 ? 2 : 4;
  part.data = static_cast<const std::byte*>(block.data) + (row * block.row_stride + col) * size;
  part.next = static_cast<const std::byte*>(block.next) + (row * block.next_stride + col) * size;
  part.rows = rows;
  part.cols = cols;
  if (row % block.tile_height != 0) part.tile_height = rows;
  if (col % block.tile_width != 0) part.tile_width = cols;
  if (block.factors != nullptr) {
    part.factors += row / block.tile_height * block.tile_stride + col / block.tile_width;
  }
  part.first_index +=
      static_cast<std::uint64_t>(row) * block.index_stride + static_cast<std::uint64_t>(col);
  return part;
}

/// Calls action(part) for each row of tiles.
template <class Action>
FP8LAB_INLINE void for_rows_of_tiles(const SourceBlock& block, Action action) {
  for (std::int64_t r = 0; r < block.rows; r += block.tile_height) {
    const std::int64_t rest = block.rows - r;
    action(r,
           part_of(block, r, rest < block.tile_height ? rest : block.tile_height, 0, block.cols));
  }
}

/// An encoder with the type of the elements and the way to scale them.
template <bool kDivide, class T, class Encoder>
struct Rows {
  Encoder encode;

  void write(const SourceBlock& block, const CodeBlock& codes) const {
    for_rows_of_tiles(block, [&](std::int64_t r, const SourceBlock& tiles) {
      encode_row_of_tiles<kDivide>(static_cast<const T*>(tiles.data), tiles, encode,
                                   {codes.data + r * codes.stride, codes.stride, false});
    });
  }
#if defined(__AVX512BW__)
  /// Transposes the codes of the first `rows` and `cols`, which fill panels,
  /// and prefetches meanwhile.
  void write_panels(const SourceBlock& block, std::int64_t rows, std::int64_t cols,
                    const CodeBlock& codes, const Prefetch& prefetch) const {
    LineReader<T> next(prefetch);
    constexpr std::int64_t kColumns = panel_columns(static_cast<const T*>(nullptr));
    for (std::int64_t r = 0; r < rows; r += 2 * kPanelRows) {
      for (std::int64_t c = 0; c < cols; c += kColumns) {
        write_panel(rows - r > kPanelRows ? 2 : 1, block, r, c, codes, next);
      }
    }
    next.finish();
  }

 private:
  void write_panel(int halves, const SourceBlock& block, std::int64_t r, std::int64_t c,
                   const CodeBlock& codes, LineReader<T>& next) const {
    const std::int64_t tile = r / block.tile_height * block.tile_stride + c / block.tile_width;
    const Panel<T> panel{halves,
                         static_cast<const T*>(block.data) + r * block.row_stride + c,
                         block.row_stride,
                         block.factors + tile,
                         block.tile_stride,
                         block.tile_height,
                         &next};
    std::uint8_t* destination = codes.data + c * codes.stride + r;
    if (block.tile_width == 1) {
      turn_panel<FactorEach, kDivide>(panel, encode, destination, codes);
    } else {
      turn_panel<OneFactor, kDivide>(panel, encode, destination, codes);
    }
  }
#endif
};

template <class Encoder, class Action>
void with_rows(Encoder encode, const EncodeRule& rule, const SourceBlock& block, Action action) {
  using Half = std::uint16_t;
  if (block.bf16) {
    rule.divide ? action(Rows<true, Half, Encoder>{encode})
                : action(Rows<false, Half, Encoder>{encode});
  } else {
    rule.divide ? action(Rows<true, float, Encoder>{encode})
                : action(Rows<false, float, Encoder>{encode});
  }
}

template <SaturatingFormat kName, class Action>
void with_saturating(const EncodeRule& rule, const SourceBlock& block, Action action) {
  if (block.finite) {
    with_rows(Saturating<kName, true>{}, rule, block, action);
  } else {
    with_rows(Saturating<kName, false>{}, rule, block, action);
  }
}

FormatSpec format_of(const EncodeRule& rule) {
  const auto encoding = static_cast<Encoding>(rule.encoding);
  return {rule.exponent_bits,
          rule.mantissa_bits,
          rule.bias,
          static_cast<SpecialValues>(rule.specials),
          true,
          encoding != Encoding::logarithmic,
          encoding};
}

numerics::ElementCast cast_of(const EncodeRule& rule) {
  return {format_of(rule),
          static_cast<Rounding>(rule.rounding),
          static_cast<Overflow>(rule.overflow),
          rule.random_bits,
          {rule.via_exponent_bits, rule.via_mantissa_bits, rule.via_bias}};
}

/// Calls action(Rows) with the rule's vector encoder. Returns false if the rule has none.
template <class Action>
bool with_encoder(const EncodeRule& rule, const SourceBlock& block, Action action) {
  using Name = SaturatingFormat;
  const numerics::ElementCast cast = cast_of(rule);
  const FormatSpec format = cast.format;
  const Overflow overflow = cast.overflow;
  if (cast.rounding != Rounding::nearest || !cast.is_direct()) return false;
  if (overflow == Overflow::saturate) {
    int name = 0;
    while (name < kSaturatingFormatCount && format != kSaturatingFormats[name]) ++name;
    switch (static_cast<Name>(name)) {
      case Name::e4m3: return with_saturating<Name::e4m3>(rule, block, action), true;
      case Name::e5m2: return with_saturating<Name::e5m2>(rule, block, action), true;
      case Name::e2m3: return with_saturating<Name::e2m3>(rule, block, action), true;
      case Name::e3m2: return with_saturating<Name::e3m2>(rule, block, action), true;
      case Name::e2m1: return with_saturating<Name::e2m1>(rule, block, action), true;
    }
  }
  if (!NearestAny::applies(format)) return false;
  with_rows(NearestAny(format, overflow), rule, block, action);
  return true;
}

/// Encodes with any other rounding and format, element by element, by the definition itself.
void encode_by_definition(const EncodeRule& rule, const RandomStream& random,
                          const SourceBlock& block, const CodeBlock& codes) {
  const numerics::ElementCast cast = cast_of(rule);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float* factors = block.factors + r / block.tile_height * block.tile_stride;
    for (std::int64_t i = 0; i < block.cols; ++i) {
      const std::int64_t at = r * block.row_stride + i;
      const float x = block.bf16
                          ? numerics::from_bf16(static_cast<const std::uint16_t*>(block.data)[at])
                          : static_cast<const float*>(block.data)[at];
      const float factor = factors[i / block.tile_width];
      std::uint32_t bits = 0;
      if (cast.is_random()) {
        bits = numerics::random_bits(random.seed, random.step, random.tensor, random.orientation,
                                     block.first_index +
                                         static_cast<std::uint64_t>(r) * block.index_stride +
                                         static_cast<std::uint64_t>(i));
      }
      codes.data[r * codes.stride + i] = static_cast<std::uint8_t>(
          numerics::encode(cast, float_bits(rule.divide ? x / factor : x * factor), bits));
    }
  }
}

void encode(const EncodeRule* rule, const RandomStream* random, const SourceBlock* block,
            const CodeBlock* codes) {
  const auto write = [&](auto rows) { rows.write(*block, *codes); };
  if (!with_encoder(*rule, *block, write)) encode_by_definition(*rule, *random, *block, *codes);
}

void amax(const SourceBlock* block, std::uint32_t* result) {
  for_rows_of_tiles(*block, [&](std::int64_t r, const SourceBlock& tiles) {
    std::uint32_t* const row = result + r / block->tile_height * block->tile_stride;
    if (block->bf16) {
      row_of_tiles_amax(static_cast<const std::uint16_t*>(tiles.data), tiles, row);
    } else {
      row_of_tiles_amax(static_cast<const float*>(tiles.data), tiles, row);
    }
  });
}

// --- scales -------------------------------------------------------------------------------------

bool all_ordinary(const ScalesRule& rule, const std::uint32_t* amax, std::int64_t count) {
  std::uint32_t outside = 0;
  for (std::int64_t i = 0; i < count; ++i) outside |= amax[i] - rule.lowest < rule.count ? 0u : 1u;
  return outside == 0;
}

bool scales(const ScalesRule* rule, const std::uint32_t* amax, std::int64_t count, float* decode,
            float* factor) {
  if (!all_ordinary(*rule, amax, count)) return false;
  const ScalesRule r = *rule;
  if (!r.quotients) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t field = ((amax[i] + r.carry) >> 23) + r.offset;
      decode[i] = numerics::bits_float(field << 23);
      factor[i] = numerics::bits_float((254u - field) << 23);
    }
    return true;
  }
  float* const quotient = r.encode_first ? factor : decode;
  float* const reciprocal = r.encode_first ? decode : factor;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = numerics::bits_float(amax[i]);
    quotient[i] = r.encode_first ? r.target / magnitude : magnitude / r.target;
    reciprocal[i] = 1.0f / quotient[i];
  }
  if (r.divide) std::memcpy(factor, decode, static_cast<std::size_t>(count) * sizeof(float));
  return true;
}

// --- transposed codes
// -------------------------------------------------------------------------------

constexpr std::int64_t kChunkColumns = 256;

/// Encodes chunks of at most 64 rows by 256 columns and transposes their codes. A chunk holds whole
/// tiles across, or lies within one wide tile; likewise down.
void transpose_by_chunks(const EncodeRule& rule, const RandomStream& random,
                         const SourceBlock& block, const CodeBlock& codes) {
  alignas(64) std::uint8_t buffer[kPanelRows * kChunkColumns];
  const CodeBlock chunk{buffer, kChunkColumns, false};
  const auto end_of = [](std::int64_t begin, std::int64_t wanted, std::int64_t tile,
                         std::int64_t limit) {
    const std::int64_t whole = wanted / tile * tile;
    std::int64_t end = begin + whole;
    if (whole == 0 || begin % tile != 0) {
      const std::int64_t tile_end = (begin / tile + 1) * tile;
      end = begin + wanted < tile_end ? begin + wanted : tile_end;
    }
    return end < limit ? end : limit;
  };
  for (std::int64_t c = 0; c < block.cols;) {
    const std::int64_t c_end = end_of(c, kChunkColumns, block.tile_width, block.cols);
    for (std::int64_t r = 0; r < block.rows;) {
      const std::int64_t r_end = end_of(r, kPanelRows, block.tile_height, block.rows);
      const SourceBlock part = part_of(block, r, r_end - r, c, c_end - c);
      encode(&rule, &random, &part, &chunk);
      transpose_bytes<kRegisterBytes>(buffer, kChunkColumns, part.rows, part.cols,
                                      codes.data + c * codes.stride + r, codes.stride);
      r = r_end;
    }
    c = c_end;
  }
}

void read(const Prefetch* prefetch) {
  if (prefetch->bf16) {
    LineReader<std::uint16_t>(*prefetch).finish();
  } else {
    LineReader<float>(*prefetch).finish();
  }
}

void encode_transposed(const EncodeRule* rule, const RandomStream* random, const SourceBlock* block,
                       const CodeBlock* codes, const Prefetch* next) {
  std::int64_t rows = 0, cols = 0;
#if defined(__AVX512BW__)
  const std::int64_t panel_cols = block->bf16 ? kPairLanes : kLanes;
  if (fits_panels(*block, panel_cols)) {
    rows = block->rows / kPanelRows * kPanelRows;
    cols = block->cols / panel_cols * panel_cols;
  }
  const auto write = [&](auto rows_of) { rows_of.write_panels(*block, rows, cols, *codes, *next); };
  if (rows * cols == 0 || !with_encoder(*rule, *block, write)) {
    rows = cols = 0;
    read(next);
  }
#else
  read(next);
#endif
  const auto transpose = [&](std::int64_t row, std::int64_t count, std::int64_t col,
                             std::int64_t wide) {
    if (count * wide == 0) return;
    transpose_by_chunks(*rule, *random, part_of(*block, row, count, col, wide),
                        {codes->data + col * codes->stride + row, codes->stride, false});
  };
  transpose(0, rows, cols, block->cols - cols);
  transpose(rows, block->rows - rows, 0, block->cols);
#if defined(__AVX512BW__)
  if (codes->streamed) _mm_sfence();
#endif
}

/// Transposes scales: whole lines of 16 scales by 16 columns as far as they go, then the rest.
void turn_scales(const float* from, std::int64_t rows, std::int64_t cols, float* to,
                 std::int64_t stride, [[maybe_unused]] bool streamed) {
  std::int64_t lines = 0, wide = 0;
#if defined(__AVX512BW__)
  lines = rows / kGroups * kGroups;
  wide = cols / kLanes * kLanes;
  for (std::int64_t i = 0; i < lines; i += 2 * kGroups) {
    const int halves = lines - i > kGroups ? 2 : 1;
    for (std::int64_t j = 0; j < wide; j += kLanes) {
      CodeGroups scales[2];
      for (std::int64_t g = 0; g < halves * kGroups; ++g) {
        scales[g / kGroups].of[g % kGroups] = load<Words>(from + (i + g) * cols + j);
      }
      write_columns(scales, halves, reinterpret_cast<std::uint8_t*>(to + j * stride + i),
                    4 * stride, streamed);
    }
  }
  if (streamed) _mm_sfence();
#endif
  for (std::int64_t j = 0; j < cols; ++j) {
    for (std::int64_t i = j < wide ? lines : 0; i < rows; ++i) {
      to[j * stride + i] = from[i * cols + j];
    }
  }
}

}  // namespace

extern const QuantizeKernels kQuantize;
const QuantizeKernels kQuantize = {
    .amax = amax,
    .scales = scales,
    .encode = encode,
    .encode_transposed = encode_transposed,
    .read = read,
    .turn_scales = turn_scales,
};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
