#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kRange = 4096;  // elements processed at a time; no effect on bits

std::int64_t ranges(std::int64_t n) { return (n + kRange - 1) / kRange; }

/// Bits of the largest magnitude and of the smallest nonzero magnitude of some elements.
struct Extremes {
  std::uint32_t amax = 0;
  std::uint32_t amin = numerics::kF32NaN;

  void add(const Extremes& other) {
    amax = std::max(amax, other.amax);
    amin = std::min(amin, other.amin);
  }
};

Extremes extremes_of(const float* x, std::int64_t count) {
  Extremes found;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = numerics::float_bits(x[i]) & 0x7FFFFFFFu;
    found.amax = std::max(found.amax, magnitude);
    found.amin = std::min(found.amin, magnitude == 0 ? numerics::kF32NaN : magnitude);
  }
  return found;
}

/// Returns the extremes of each tile of `tile` elements. Maxima and minima do
/// not depend on the order.
std::vector<Extremes> extremes_of_tiles(const float* x, std::int64_t n, std::int64_t tile) {
  std::vector<Extremes> tiles(static_cast<std::size_t>((n + tile - 1) / tile));
  if (tile < kRange) {
#pragma omp parallel for schedule(static)
    for (std::int64_t t = 0; t < (n + tile - 1) / tile; ++t) {
      tiles[static_cast<std::size_t>(t)] = extremes_of(x + t * tile, std::min(tile, n - t * tile));
    }
    return tiles;
  }
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const std::int64_t begin = static_cast<std::int64_t>(t) * tile;
    const std::int64_t count = std::min(tile, n - begin);
    std::vector<Extremes> parts(static_cast<std::size_t>(ranges(count)));
#pragma omp parallel for schedule(static)
    for (std::int64_t r = 0; r < ranges(count); ++r) {
      parts[static_cast<std::size_t>(r)] =
          extremes_of(x + begin + r * kRange, std::min(kRange, count - r * kRange));
    }
    for (const Extremes& part : parts) tiles[t].add(part);
  }
  return tiles;
}

float* number_of_tile(const StoredState& state, int i, std::int64_t tile) {
  return state.scales.row<float>(i) + tile;
}

void write_code(const StoredState& state, std::int64_t i, std::uint32_t code) {
  auto* const bytes = static_cast<std::uint8_t*>(state.codes.data);
  if (state_code_bytes(state.spec) == 1) {
    bytes[i] = static_cast<std::uint8_t>(code);
  } else {
    bytes[2 * i] = static_cast<std::uint8_t>(code & 0xFFu);
    bytes[2 * i + 1] = static_cast<std::uint8_t>(code >> 8);
  }
}

std::uint32_t read_code(const StoredState& state, std::int64_t i) {
  const auto* const bytes = static_cast<const std::uint8_t*>(state.codes.data);
  if (state_code_bytes(state.spec) == 1) return bytes[i];
  return bytes[2 * i] | (std::uint32_t{bytes[2 * i + 1]} << 8);
}

}  // namespace

void run(const ops::StoreState& op) {
  op.check();
  const std::int64_t n = op.source.cols;
  const auto* const x = op.source.row<float>(0);
  if (is_plain_state(op.state.spec)) {
    const PointwiseKernels& kernels = pointwise_kernels();
    const TensorView values = op.state.codes.flat();
#pragma omp parallel for schedule(static)
    for (std::int64_t r = 0; r < ranges(n); ++r) {
      write_row(kernels, x + r * kRange, std::min(kRange, n - r * kRange), values, 0, r * kRange);
    }
    return;
  }
  const numerics::StateCodec codec = state_codec(op.state.spec);
  const std::int64_t tile = state_tile(op.state.spec, n);
  const std::vector<Extremes> extremes = extremes_of_tiles(x, n, tile);
  std::vector<numerics::StateTile> tiles(extremes.size());
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    tiles[t] = numerics::state_tile(codec, extremes[t].amax, extremes[t].amin);
    for (int i = 0; i < codec.tile_numbers(); ++i) {
      *number_of_tile(op.state, i, static_cast<std::int64_t>(t)) =
          numerics::tile_number(codec, tiles[t], i);
    }
  }
  const bool is_random = codec.cast.is_random();
  const std::uint32_t step = is_random ? op.key.step_number() : 0;
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits =
        is_random ? numerics::random_bits(op.key.seed, step, op.key.tensor, op.key.orientation,
                                          static_cast<std::uint64_t>(i))
                  : 0;
    write_code(
        op.state, i,
        numerics::encode_state(codec, tiles[static_cast<std::size_t>(i / tile)], x[i], bits));
  }
}

void run(const ops::LoadState& op) {
  op.check();
  const std::int64_t n = op.destination.cols;
  auto* const x = op.destination.row<float>(0);
  if (is_plain_state(op.state.spec)) {
    run(ops::Copy{op.state.codes.flat(), op.destination});
    return;
  }
  const numerics::StateCodec codec = state_codec(op.state.spec);
  const std::int64_t tile = state_tile(op.state.spec, n);
  std::vector<numerics::StateTile> tiles(static_cast<std::size_t>((n + tile - 1) / tile));
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    tiles[t] = numerics::state_tile(codec, 0, numerics::kF32NaN);
    for (int i = 0; i < codec.tile_numbers(); ++i) {
      numerics::set_tile_number(codec, tiles[t], i,
                                *number_of_tile(op.state, i, static_cast<std::int64_t>(t)));
    }
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = numerics::decode_state(codec, tiles[static_cast<std::size_t>(i / tile)],
                                  read_code(op.state, i));
  }
}

}  // namespace fp8lab::cpu
