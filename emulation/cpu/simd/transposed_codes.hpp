// Writes the codes of a panel of rows as columns, in whole cache lines. For the SIMD sources only.
#pragma once

#include <utility>

#include "emulation/cpu/simd/code_bytes.hpp"
#include "emulation/cpu/simd/line_reader.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/quantize_lanes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// One cache line of each code column. A panel is one or two of these high.
constexpr std::int64_t kPanelRows = 64;

#if defined(__AVX512BW__)

/// Panel width: the elements of a register.
constexpr std::int64_t panel_columns(const std::uint16_t*) { return kPairLanes; }
constexpr std::int64_t panel_columns(const float*) { return kLanes; }

/// Returns whether tiles end at panel borders or hold whole panels.
inline bool fits_panels(const SourceBlock& block, std::int64_t panel_cols) {
  const std::int64_t height = block.tile_height, width = block.tile_width;
  const bool down = height >= block.rows || height % (2 * kPanelRows) == 0 ||
                    (2 * kPanelRows % height == 0 && height % 4 == 0);
  return down && (width == 1 || width >= block.cols || width % panel_cols == 0);
}

/// Four rows of codes, one row in each byte.
constexpr int kGroups = kPanelRows / 4;
struct CodeGroups {
  Words of[kGroups];
};

FP8LAB_INLINE void store_line(Words line, std::uint8_t* destination, bool streamed) {
  if (streamed) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), (__m512i)line);
  } else {
    std::memcpy(destination, &line, sizeof line);
  }
}

/// Returns, of 128-bit lanes, the words a0 b0 a1 b1, or with kHigh a2 b2 a3 b3; or, of registers,
/// the lanes a0 a2 b0 b2, or a1 a3 b1 b3.
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

/// Exchanges bit kDistance of a line's number with the upper bit of a word's place within its
/// 128-bit lane, or with the lower bit of a lane's place within its register. The other bit of the
/// place moves into the position that becomes free.
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

/// Writes lane i of the groups, which is column i, to the lines at destination + i * stride, one
/// line for each half. Writes the two lines directly one after the other: only then does memory
/// take two neighbouring lines nearly as fast as one.
template <int kHalves>
void write_columns(const CodeGroups* groups, std::uint8_t* destination, std::int64_t stride,
                   bool streamed) {
  static_assert(kGroups == 16 && kLanes == 16);
  Words lines[kHalves][16];
  for (int half = 0; half < kHalves; ++half) {
    for (int i = 0; i < 16; ++i) lines[half][i] = groups[half].of[i];
    // Shuffles of two registers that need no third register for an index and overwrite no operand.
    exchange_all<2, true>(lines[half]);
    exchange_all<1, true>(lines[half]);
    exchange_all<4, false>(lines[half]);
    exchange_all<8, false>(lines[half]);
  }
  for (int i = 0; i < 16; ++i) {
    for (int half = 0; half < kHalves; ++half) {
      store_line(lines[half][i], destination + i * stride + half * kPanelRows, streamed);
    }
  }
}

inline void write_columns(const CodeGroups* groups, int halves, std::uint8_t* destination,
                          std::int64_t stride, bool streamed) {
  const auto write = halves == 2 ? write_columns<2> : write_columns<1>;
  write(groups, destination, stride, streamed);
}

/// Rows of a panel. The first row begins a tile, or lies in a tile that ends
/// no sooner than the panel.
template <class T>
struct Panel {
  int halves;  ///< number of kPanelRows: one or two
  const T* x;
  std::int64_t row_stride;
  const float* factors;  ///< at the first tile and the first column
  std::int64_t tile_stride, tile_height;
  LineReader<T>* next;  ///< copies lines while the panel is encoded

  const T* row(std::int64_t r) const { return x + r * row_stride; }
  /// Calls set(factors) at the first row of each tile, and encode_group(g) for
  /// each group of four rows.
  template <class Set, class Encode>
  FP8LAB_INLINE void for_groups(Set set, Encode encode_group) const {
    const float* of_tile = factors;
    std::int64_t rows_left = 0;
    LineReader<T> reader = *next;
    for (int g = 0; g < halves * kGroups; ++g, rows_left -= 4) {
      if (rows_left == 0) {
        set(of_tile);
        of_tile += tile_stride;
        rows_left = tile_height;
      }
      reader.step();
      encode_group(g);
    }
    *next = reader;
  }
};

template <class Factor, bool kDivide, class Encoder>
void turn_panel(const Panel<std::uint16_t>& panel, Encoder encode, std::uint8_t* destination,
                const CodeBlock& codes) {
  CodeGroups even[2], odd[2];
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
    Words& even_codes = even[g / kGroups].of[g % kGroups];
    Words& odd_codes = odd[g / kGroups].of[g % kGroups];
    even_codes = side_by_side(e[0], e[1], e[2], e[3]);
    odd_codes = side_by_side(o[0], o[1], o[2], o[3]);
    if constexpr (Encoder::kSignsApart) {
      const Words ab = odd_bytes(pairs[0], pairs[1]), cd = odd_bytes(pairs[2], pairs[3]);
      even_codes = encode.with_signs(even_codes, lower_halves(ab, cd));
      odd_codes = encode.with_signs(odd_codes, upper_halves(ab, cd));
    }
  });
  write_columns(even, panel.halves, destination, 2 * codes.stride, codes.streamed);
  write_columns(odd, panel.halves, destination + codes.stride, 2 * codes.stride, codes.streamed);
}

template <class Factor, bool kDivide, class Encoder>
void turn_panel(const Panel<float>& panel, Encoder encode, std::uint8_t* destination,
                const CodeBlock& codes) {
  CodeGroups groups[2];
  Floats factor{};
  const auto set = [&](const float* factors) { factor = Factor::at(factors).straight(); };
  panel.for_groups(set, [&](int g) {
    Words x[4], c[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = load<Words>(panel.row(4 * g + i));
      c[i] = unsigned_codes(encode, scaled<kDivide>((Floats)x[i], factor));
    }
    Words& four = groups[g / kGroups].of[g % kGroups];
    four = side_by_side(c[0], c[1], c[2], c[3]);
    if constexpr (Encoder::kSignsApart) {
      const Words signs = upper_halves(odd_bytes(x[0], x[1]), odd_bytes(x[2], x[3]));
      four = encode.with_signs(four, signs);
    }
  });
  write_columns(groups, panel.halves, destination, codes.stride, codes.streamed);
}

#endif

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
