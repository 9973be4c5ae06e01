// Shared parts of the general quantization kernels: their launch shape, and the cast of one value.
#pragma once

#include <algorithm>

#include "emulation/backend.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "kernels/pointwise/rows.cuh"

namespace fp8lab::cuda {

// A block works on 64 x 64 elements of the source: 8 x 32 threads, each with 8 columns of 2 rows.
inline constexpr int kTileSide = 64;
inline constexpr int kThreadsAcross = kTileSide / kGroup;
inline constexpr int kThreadsDown = 32;
inline constexpr int kTileThreadCount = kThreadsAcross * kThreadsDown;
inline const dim3 kTileThreads(kThreadsAcross, kThreadsDown);

inline dim3 tile_blocks(const TensorView& source) {
  return {static_cast<unsigned>((source.cols + kTileSide - 1) / kTileSide),
          static_cast<unsigned>(
              std::min<std::int64_t>((source.rows + kTileSide - 1) / kTileSide, 65535))};
}

/// Returns the grid for blocks of 256 threads, one element of a row for each thread.
inline dim3 element_blocks(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>((cols + 255) / 256),
          static_cast<unsigned>(std::min<std::int64_t>(rows, 65535))};
}

/// Returns a / b for indices below 2^32, such as rows and columns of a matrix: a 64-bit division
/// takes about four times as long.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

/// Tile index of a column; next() moves to the following column without a division.
struct TileOfColumn {
  std::int64_t tile, left;  ///< left: columns of the tile from the current one on

  __device__ TileOfColumn(std::int64_t col, std::int64_t width)
      : tile(quotient(col, width)), left((tile + 1) * width - col) {}
  __device__ void next(std::int64_t width) {
    if (--left != 0) return;
    ++tile;
    left = width;
  }
};

/// The cast of one scaled value.
struct Cast {
  numerics::ElementCast element;
  bool divide;
  RandomKey key;
  bool takes_nearest;  ///< `nearest` encodes `element`
  numerics::NearestCodec nearest;

  __device__ float scaled(float x, float factor) const { return divide ? x / factor : x * factor; }
  /// Precondition for stochastic rounding: `random` is the element's word in its block.
  __device__ std::uint32_t code(float scaled_x, std::uint32_t random) const {
    if (takes_nearest) return nearest.encode(scaled_x);
    return numerics::encode(element, numerics::float_bits(scaled_x), random);
  }
};

/// Random words of consecutive elements, drawn in blocks of four (numerics::random_bits); zeros
/// unless `cast` rounds stochastically.
class RandomWords {
 public:
  __device__ RandomWords(const Cast& cast, std::uint64_t first)
      : key_(cast.key), index_(first), is_drawn_(cast.element.is_random()) {}

  __device__ std::uint32_t next() {
    if (!is_drawn_) return 0;
    if (!has_block_ || index_ % 4 == 0) {
      block_ = numerics::random_block(key_.seed, key_.step_number(), key_.tensor, key_.orientation,
                                      index_ / 4);
      has_block_ = true;
    }
    const auto word = static_cast<unsigned>(index_++ % 4);
    return word == 0   ? block_.word[0]
           : word == 1 ? block_.word[1]
           : word == 2 ? block_.word[2]
                       : block_.word[3];
  }

 private:
  const RandomKey& key_;
  std::uint64_t index_;
  bool is_drawn_, has_block_ = false;
  numerics::PhiloxCounter block_{};
};

inline Cast cast_of(const QuantSpec& spec, const RandomKey& key) {
  Cast cast{spec.cast(), spec.has_scale() && spec.scale.divides(), key, false, {}};
  if (spec.rounding == numerics::Rounding::nearest && cast.element.is_direct() &&
      numerics::NearestCodec::applies(spec.format)) {
    cast.takes_nearest = true;
    cast.nearest = numerics::NearestCodec(spec.format, spec.overflow);
  }
  return cast;
}

}  // namespace fp8lab::cuda
