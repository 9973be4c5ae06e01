// Codes of a panel of 64 rows, written as columns: whole cache lines. For the SIMD sources only.
#pragma once

#include <utility>

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/quantize_lanes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

constexpr std::int64_t kPanelRows = 64;

#if defined(__AVX512BW__)

/// Columns of a panel: the elements of a register.
constexpr std::int64_t panel_columns(const std::uint16_t*) { return kPairLanes; }
constexpr std::int64_t panel_columns(const float*) { return kLanes; }

/// Whether tiles end where panels do, or hold whole ones.
inline bool fits_panels(const SourceBlock& block, std::int64_t panel_cols) {
  const std::int64_t height = block.tile_height, width = block.tile_width;
  const bool down = height >= block.rows || height % kPanelRows == 0 ||
                    (kPanelRows % height == 0 && height % 4 == 0);
  return down && (width == 1 || width >= block.cols || width % panel_cols == 0);
}

/// Four rows of codes, one in each byte.
constexpr int kGroups = kPanelRows / 4;
struct CodeGroups {
  Words of[kGroups];
};

/// `words` with the bytes of the mask taken from their neighbours in `from`: byte 0 from 1, 1 from
/// 0, 2 from 3 and 3 from 2 of each word.
template <__mmask64 kMask>
FP8LAB_INLINE Words with_neighbours(Words words, Words from) {
  const __m512i index = _mm512_set4_epi32(0x0E0F0C0D, 0x0A0B0809, 0x06070405, 0x02030001);
  return (Words)_mm512_mask_shuffle_epi8((__m512i)words, kMask, (__m512i)from, index);
}
/// The same from the other half of each word.
template <__mmask64 kMask>
FP8LAB_INLINE Words with_other_half(Words words, Words from) {
  const __m512i index = _mm512_set4_epi32(0x0D0C0F0E, 0x09080B0A, 0x05040706, 0x01000302);
  return (Words)_mm512_mask_shuffle_epi8((__m512i)words, kMask, (__m512i)from, index);
}
/// The lower halves of the words of a and b, or the upper ones, a's lower.
FP8LAB_INLINE Words lower_halves(Words a, Words b) {
  return with_other_half<0xCCCCCCCCCCCCCCCCu>(a, b);
}
FP8LAB_INLINE Words upper_halves(Words a, Words b) {
  return with_other_half<0x3333333333333333u>(b, a);
}
/// Bytes 1 and 3 of the words of a and b: a1 b1 a3 b3.
FP8LAB_INLINE Words odd_bytes(Words a, Words b) {
  return with_neighbours<0x5555555555555555u>(b, a);
}
/// The low bytes of a, b, c and d side by side, a's lowest.
FP8LAB_INLINE Words side_by_side(Words a, Words b, Words c, Words d) {
  constexpr __mmask64 kByte1 = 0x2222222222222222u;
  return lower_halves(with_neighbours<kByte1>(a, b), with_neighbours<kByte1>(c, d));
}

template <class Encoder>
FP8LAB_INLINE Words unsigned_codes(Encoder encode, Floats values) {
  if constexpr (Encoder::kSignsApart) return encode.without_sign(values);
  return encode(values);
}

FP8LAB_INLINE void store_line(Words line, std::uint8_t* destination, bool streamed) {
  if (streamed) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), (__m512i)line);
  } else {
    std::memcpy(destination, &line, sizeof line);
  }
}

/// Of 128-bit lanes the words a0 b0 a1 b1, or with kHigh a2 b2 a3 b3; or of registers the lanes
/// a0 a2 b0 b2, or a1 a3 b1 b3.
template <bool kWithin, int kHigh, int... kIndex>
FP8LAB_INLINE Words exchange(Words a, Words b, std::integer_sequence<int, kIndex...>) {
  if constexpr (kWithin) {
    return __builtin_shufflevector(
        a, b, (kIndex / 4 * 4 + 2 * kHigh + kIndex % 4 / 2 + kIndex % 2 * kLanes)...);
  } else {
    return __builtin_shufflevector(
        a, b, (kIndex / 4 % 2 * 8 + 4 * kHigh + kIndex % 4 + kIndex / 8 * kLanes)...);
  }
}

/// Exchanges the bit kDistance of the number of a line with the upper bit of the place of a word
/// within its 128-bit lane, or with the lower one of a lane within its register; the other bit of
/// the place moves there instead.
template <int kDistance, bool kWithin>
FP8LAB_INLINE void exchange_all(Words* lines) {
  using Sequence = std::make_integer_sequence<int, kLanes>;
  for (int i = 0; i < kGroups; ++i) {
    if ((i & kDistance) != 0) continue;
    const Words a = lines[i], b = lines[i + kDistance];
    lines[i] = exchange<kWithin, 0>(a, b, Sequence{});
    lines[i + kDistance] = exchange<kWithin, 1>(a, b, Sequence{});
  }
}

/// Lane i of the groups is column i, which becomes the line at destination + i * stride.
inline void write_columns(const CodeGroups& groups, std::uint8_t* destination, std::int64_t stride,
                          bool streamed) {
  static_assert(kGroups == 16 && kLanes == 16);
  Words lines[16];
  for (int i = 0; i < 16; ++i) lines[i] = groups.of[i];
  // Shuffles of two registers that need no third for an index, nor overwrite one.
  exchange_all<2, true>(lines);
  exchange_all<1, true>(lines);
  exchange_all<4, false>(lines);
  exchange_all<8, false>(lines);
  for (int i = 0; i < 16; ++i) store_line(lines[i], destination + i * stride, streamed);
}

/// Brings the lines of a rectangle near one by one, along its rows: in another order each line lies
/// in a page of its own.
class Lookahead {
 public:
  Lookahead(const void* data, std::int64_t row_bytes, std::int64_t row_lines)
      : row_(static_cast<const std::byte*>(data)), row_bytes_(row_bytes), row_lines_(row_lines) {}

  FP8LAB_INLINE void step() {
    __builtin_prefetch(row_ + line_ * 64, 0, 2);
    if (++line_ < row_lines_) return;
    line_ = 0;
    row_ += row_bytes_;
  }

 private:
  const std::byte* row_;
  std::int64_t row_bytes_, row_lines_, line_ = 0;
};

/// Rows of a panel, the first of which begins a tile or lies in one that ends no sooner than the
/// panel.
template <class T>
struct Panel {
  const T* x;
  std::int64_t row_stride;
  const float* factors;  ///< at the first tile and the first column
  std::int64_t tile_stride, tile_height;
  Lookahead& next;

  const T* row(std::int64_t r) const {
    next.step();
    return x + r * row_stride;
  }
  /// Calls set(factors) where a tile begins, and encode_group(g) for each group of four rows.
  template <class Set, class Encode>
  FP8LAB_INLINE void for_groups(Set set, Encode encode_group) const {
    const float* of_tile = factors;
    std::int64_t rows_left = 0;
    for (int g = 0; g < kGroups; ++g, rows_left -= 4) {
      if (rows_left == 0) {
        set(of_tile);
        of_tile += tile_stride;
        rows_left = tile_height;
      }
      encode_group(g);
    }
  }
};

template <class Factor, bool kDivide, class Encoder>
void turn_panel(const Panel<std::uint16_t>& panel, Encoder encode, std::uint8_t* destination,
                const CodeBlock& codes) {
  CodeGroups even, odd;
  Floats of_even{}, of_odd{};
  const auto set = [&](const float* factors) {
    of_even = Factor::at(factors).even();
    of_odd = Factor::at(factors).odd();
  };
  panel.for_groups(set, [&](int g) {
    Words pairs[4], e[4], o[4];
    for (int i = 0; i < 4; ++i) {
      pairs[i] = load<Words>(panel.row(4 * g + i));
      e[i] = unsigned_codes(encode, scaled<kDivide>((Floats)(pairs[i] << 16), of_even));
      o[i] = unsigned_codes(encode, scaled<kDivide>((Floats)(pairs[i] & 0xFFFF0000u), of_odd));
    }
    even.of[g] = side_by_side(e[0], e[1], e[2], e[3]);
    odd.of[g] = side_by_side(o[0], o[1], o[2], o[3]);
    if constexpr (Encoder::kSignsApart) {
      const Words ab = odd_bytes(pairs[0], pairs[1]), cd = odd_bytes(pairs[2], pairs[3]);
      even.of[g] = encode.with_signs(even.of[g], lower_halves(ab, cd));
      odd.of[g] = encode.with_signs(odd.of[g], upper_halves(ab, cd));
    }
  });
  write_columns(even, destination, 2 * codes.stride, codes.streamed);
  write_columns(odd, destination + codes.stride, 2 * codes.stride, codes.streamed);
}

template <class Factor, bool kDivide, class Encoder>
void turn_panel(const Panel<float>& panel, Encoder encode, std::uint8_t* destination,
                const CodeBlock& codes) {
  CodeGroups groups;
  Floats factor{};
  const auto set = [&](const float* factors) { factor = Factor::at(factors).straight(); };
  panel.for_groups(set, [&](int g) {
    Words x[4], c[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = load<Words>(panel.row(4 * g + i));
      c[i] = unsigned_codes(encode, scaled<kDivide>((Floats)x[i], factor));
    }
    groups.of[g] = side_by_side(c[0], c[1], c[2], c[3]);
    if constexpr (Encoder::kSignsApart) {
      const Words signs = upper_halves(odd_bytes(x[0], x[1]), odd_bytes(x[2], x[3]));
      groups.of[g] = encode.with_signs(groups.of[g], signs);
    }
  });
  write_columns(groups, destination, codes.stride, codes.streamed);
}

#endif

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
