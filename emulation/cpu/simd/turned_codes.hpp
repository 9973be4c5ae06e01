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

/// The low bytes of a, b, c and d side by side, a's lowest.
FP8LAB_INLINE Words side_by_side(Words a, Words b, Words c, Words d) {
  const Words low = (a & 0xFFu) | ((b << 8) & ~0xFFu);
  const Words high = (c & 0xFFu) | ((d << 8) & ~0xFFu);
  return (low & 0xFFFFu) | (high << 16);
}

template <int kHigh, int... kIndex>
FP8LAB_INLINE Words interleave_words(Words a, Words b, std::integer_sequence<int, kIndex...>) {
  return __builtin_shufflevector(a, b, (kIndex / 2 + kLanes / 2 * kHigh + kIndex % 2 * kLanes)...);
}

FP8LAB_INLINE void store_line(Words line, std::uint8_t* destination, bool streamed) {
  if (streamed) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), (__m512i)line);
  } else {
    std::memcpy(destination, &line, sizeof line);
  }
}

/// Lane i of the groups is column i, which becomes the line at destination + i * stride.
/// Interleaving vectors i and i + 8 moves the top bit of a group's index to the bottom of the
/// lane's; four rounds exchange the two.
inline void write_columns(const CodeGroups& groups, std::uint8_t* destination, std::int64_t stride,
                          bool streamed) {
  using Sequence = std::make_integer_sequence<int, kLanes>;
  static_assert(kGroups == 16 && kLanes == 16);
  Words a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = groups.of[i];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = interleave_words<0>(a[i], a[i + 8], Sequence{});
      b[2 * i + 1] = interleave_words<1>(a[i], a[i + 8], Sequence{});
    }
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = interleave_words<0>(b[i], b[i + 8], Sequence{});
      a[2 * i + 1] = interleave_words<1>(b[i], b[i + 8], Sequence{});
    }
  }
  for (int i = 0; i < 16; ++i) store_line(a[i], destination + i * stride, streamed);
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
    Words e[4], o[4];
    for (int i = 0; i < 4; ++i) {
      const Words pairs = load<Words>(panel.row(4 * g + i));
      e[i] = encode(scaled<kDivide>((Floats)(pairs << 16), of_even));
      o[i] = encode(scaled<kDivide>((Floats)(pairs & 0xFFFF0000u), of_odd));
    }
    even.of[g] = side_by_side(e[0], e[1], e[2], e[3]);
    odd.of[g] = side_by_side(o[0], o[1], o[2], o[3]);
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
    Words c[4];
    for (int i = 0; i < 4; ++i) {
      c[i] = encode(scaled<kDivide>(load<Floats>(panel.row(4 * g + i)), factor));
    }
    groups.of[g] = side_by_side(c[0], c[1], c[2], c[3]);
  });
  write_columns(groups, destination, codes.stride, codes.streamed);
}

#endif

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
