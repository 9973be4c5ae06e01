// Computes the largest magnitudes of tiles. For the SIMD sources only.
#pragma once

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/quantize_lanes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Returns the largest of the magnitudes in `lanes`, which are never negative.
inline std::uint32_t largest_lane(Shorts lanes) {
  std::int16_t values[kPairLanes];
  std::memcpy(values, &lanes, sizeof values);
  std::int16_t largest = 0;
  for (const std::int16_t value : values) largest = value > largest ? value : largest;
  return static_cast<std::uint32_t>(largest) << 16;
}

inline std::uint32_t magnitude_max(const std::uint16_t* x, std::int64_t n) {
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

inline std::uint32_t magnitude_max(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<std::int32_t>(float_bits(x[i]) & ~kSignBit);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

/// Columns at a time of column_max(): column maxima over all rows of a block,
/// for tiles one column wide.
constexpr std::int64_t kColumnChunk = 512;

inline void column_max(const std::uint16_t* x, const SourceBlock& block, std::uint32_t* amax) {
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

inline void column_max(const float* x, const SourceBlock& block, std::uint32_t* amax) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float* row = x + r * block.row_stride;
    for (std::int64_t i = 0; i < block.cols; ++i) {
      const std::uint32_t magnitude = float_bits(row[i]) & ~kSignBit;
      amax[i] = magnitude > amax[i] ? magnitude : amax[i];
    }
  }
}

#if defined(__AVX512BW__)
/// Returns the larger lane of each neighbouring pair, those of `a` first.
FP8LAB_INLINE Ints fold(Ints a, Ints b) {
  return larger(every_second<0>(a, b), every_second<1>(a, b));
}

/// Raises the amaxes of tiles of kWidth columns, 16 tiles at a time. Returns the
/// number of tiles processed.
template <int kWidth>
std::int64_t narrow_amax(const std::uint16_t* x, std::int64_t tiles, std::uint32_t* amax) {
  constexpr int kRegisters = kLanes * kWidth / kPairLanes;
  std::int64_t done = 0;
  for (; done + kLanes <= tiles; done += kLanes, x += kLanes * kWidth) {
    Ints lanes[kRegisters];  // the larger of each pair of elements
    for (int i = 0; i < kRegisters; ++i) {
      const Ints pairs = load<Ints>(x + i * kPairLanes) & 0x7FFF7FFF;
      lanes[i] = larger(pairs & 0x7FFF, pairs >> 16);
    }
    for (int count = kRegisters; count > 1; count /= 2) {
      for (int i = 0; i < count / 2; ++i) lanes[i] = fold(lanes[2 * i], lanes[2 * i + 1]);
    }
    const Ints largest = larger(load<Ints>(amax + done), lanes[0] << 16);
    std::memcpy(amax + done, &largest, sizeof largest);
  }
  return done;
}
/// Raises the amaxes of narrow tiles, of which a register holds one or two. Returns the
/// number of tiles processed.
inline std::int64_t narrow_tiles(const std::uint16_t* x, std::int64_t width, std::int64_t tiles,
                                 std::uint32_t* amax) {
  if (width == 32) return narrow_amax<32>(x, tiles, amax);
  if (width == 16) return narrow_amax<16>(x, tiles, amax);
  return 0;
}
inline std::int64_t narrow_tiles(const float*, std::int64_t, std::int64_t, std::uint32_t*) {
  return 0;
}
#else
template <class T>
std::int64_t narrow_tiles(const T*, std::int64_t, std::int64_t, std::uint32_t*) {
  return 0;
}
#endif

/// Raises the amaxes of one row of tiles: `block.rows` rows that all lie in it.
template <class T>
void row_of_tiles_amax(const T* x, const SourceBlock& block, std::uint32_t* amax) {
  if (block.tile_width == 1) return column_max(x, block, amax);
  const std::int64_t width = block.tile_width;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const T* row = x + r * block.row_stride;
    std::int64_t j = narrow_tiles(row, width, block.cols / width, amax);
    for (std::int64_t start = j * width; start < block.cols; start += width, ++j) {
      const std::int64_t rest = block.cols - start;
      // A constant count lets the compiler unroll the common tile into straight vector code.
      const std::uint32_t magnitude = width == 128 && rest >= 128
                                          ? magnitude_max(row + start, 128)
                                          : magnitude_max(row + start, rest < width ? rest : width);
      amax[j] = magnitude > amax[j] ? magnitude : amax[j];
    }
  }
}

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
