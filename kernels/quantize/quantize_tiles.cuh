// What the general quantization kernels share: their blocks, and the cast of one value.
#pragma once

#include <algorithm>

#include "emulation/backend.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab::cuda {

// A block works on 64 x 64 elements of the source: 16 x 16 threads, each with 4 columns of 4 rows.
inline constexpr int kTileSide = 64;
inline constexpr int kThreadsAcross = 16;
inline constexpr int kPerThread = 4;
inline const dim3 kTileThreads(kThreadsAcross, kThreadsAcross);

inline dim3 tile_blocks(const TensorView& source) {
  return {static_cast<unsigned>((source.cols + kTileSide - 1) / kTileSide),
          static_cast<unsigned>(
              std::min<std::int64_t>((source.rows + kTileSide - 1) / kTileSide, 65535))};
}

/// Blocks of 256 threads, each thread an element of a row.
inline dim3 element_blocks(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>((cols + 255) / 256),
          static_cast<unsigned>(std::min<std::int64_t>(rows, 65535))};
}

/// The cast of one scaled value.
struct Cast {
  numerics::FormatSpec format;
  numerics::Rounding rounding;
  numerics::Overflow overflow;
  bool divide;
  RandomKey key;

  __device__ float scaled(float x, float factor) const { return divide ? x / factor : x * factor; }
  __device__ std::uint32_t code(float scaled_x, std::uint64_t index) const {
    std::uint32_t random = 0;
    if (rounding == numerics::Rounding::stochastic) {
      random =
          numerics::random_bits(key.seed, key.step_number(), key.tensor, key.orientation, index);
    }
    return numerics::encode(format, numerics::float_bits(scaled_x), rounding, overflow, random);
  }
};

inline Cast cast_of(const QuantSpec& spec, const RandomKey& key) {
  return {spec.format, spec.rounding, spec.overflow, spec.has_scale() && spec.scale.divides(), key};
}

}  // namespace fp8lab::cuda
