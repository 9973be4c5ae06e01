// Stored states of the optimizer: first the extremes of all tiles, then
// one thread for each element.
#include <cstdint>

#include "emulation/numerics/philox.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kPart = 4096;  ///< elements of a tile that a block reads at once

/// Bits of a tile's largest magnitude, and the inverted bits of its smallest nonzero magnitude, so
/// that cleared memory is the initial value of both.
struct Extremes {
  std::uint32_t amax;
  std::uint32_t inverted_amin;
};

/// Finds the extremes with one block for each part of at most kPart elements of a tile. The order
/// of maxima does not matter.
__global__ void __launch_bounds__(kThreads)
    find_extremes(const float* x, std::int64_t n, std::int64_t tile, std::int64_t parts_of_tile,
                  std::int64_t parts, Extremes* extremes) {
  __shared__ std::uint32_t amax, inverted_amin;
  for (std::int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    if (threadIdx.x == 0) amax = inverted_amin = 0;
    __syncthreads();
    const std::int64_t t = part / parts_of_tile, first = t * tile;
    const std::int64_t tile_end = n - first < tile ? n : first + tile;
    const std::int64_t begin = first + (part % parts_of_tile) * kPart;
    const std::int64_t end = tile_end - begin < kPart ? tile_end : begin + kPart;
    std::uint32_t largest = 0, smallest = 0;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const std::uint32_t magnitude = numerics::float_bits(x[i]) & 0x7FFFFFFFu;
      largest = max(largest, magnitude);
      if (magnitude != 0) smallest = max(smallest, ~magnitude);
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    smallest = __reduce_max_sync(0xFFFFFFFFu, smallest);
    if (threadIdx.x % 32 == 0) {
      atomicMax(&amax, largest);
      atomicMax(&inverted_amin, smallest);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      atomicMax(&extremes[t].amax, amax);
      atomicMax(&extremes[t].inverted_amin, inverted_amin);
    }
    __syncthreads();
  }
}

/// A StoredState with codes, on the device.
struct Codes {
  numerics::StateCodec codec;
  std::uint8_t* codes;
  float* numbers;  ///< (codec.tile_numbers(), tiles)
  std::int64_t tiles, tile;
  int bytes;

  __device__ void write(std::int64_t i, std::uint32_t code) const {
    if (bytes == 1) {
      codes[i] = static_cast<std::uint8_t>(code);
    } else {
      codes[2 * i] = static_cast<std::uint8_t>(code & 0xFFu);
      codes[2 * i + 1] = static_cast<std::uint8_t>(code >> 8);
    }
  }
  __device__ std::uint32_t read(std::int64_t i) const {
    if (bytes == 1) return codes[i];
    return codes[2 * i] | (std::uint32_t{codes[2 * i + 1]} << 8);
  }
};

Codes codes_of(const StoredState& state, std::int64_t n) {
  return {state_codec(state.spec),
          static_cast<std::uint8_t*>(state.codes.data),
          static_cast<float*>(state.scales.data),
          stored_tiles(state.spec, n),
          state_tile(state.spec, n),
          static_cast<int>(state_code_bytes(state.spec))};
}

__global__ void __launch_bounds__(kThreads)
    encode_elements(const float* x, std::int64_t n, const Extremes* extremes, RandomKey key,
                    Codes state) {
  const bool is_random = state.codec.cast.is_random();
  const std::uint32_t step = is_random ? key.step_number() : 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += stride) {
    const std::int64_t t = i / state.tile;
    Extremes of_tile{};
    if (extremes != nullptr) of_tile = extremes[t];
    // A tile of zeros has no smallest magnitude; it uses the canonical NaN instead.
    const std::uint32_t amin =
        of_tile.inverted_amin == 0 ? numerics::kF32NaN : ~of_tile.inverted_amin;
    const numerics::StateTile tile = numerics::state_tile(state.codec, of_tile.amax, amin);
    if (i == t * state.tile) {
      for (int k = 0; k < state.codec.tile_numbers(); ++k) {
        state.numbers[k * state.tiles + t] = numerics::tile_number(state.codec, tile, k);
      }
    }
    const std::uint32_t bits =
        is_random ? numerics::random_bits(key.seed, step, key.tensor, key.orientation,
                                          static_cast<std::uint64_t>(i))
                  : 0;
    state.write(i, numerics::encode_state(state.codec, tile, x[i], bits));
  }
}

__global__ void __launch_bounds__(kThreads) decode_elements(Codes state, std::int64_t n, float* x) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += stride) {
    const std::int64_t t = i / state.tile;
    numerics::StateTile tile = numerics::state_tile(state.codec, 0, numerics::kF32NaN);
    for (int k = 0; k < state.codec.tile_numbers(); ++k) {
      numerics::set_tile_number(state.codec, tile, k, state.numbers[k * state.tiles + t]);
    }
    x[i] = numerics::decode_state(state.codec, tile, state.read(i));
  }
}

/// Stores a plain state, rounded to its type.
template <class T>
struct Round {
  Rows<float> x;
  Rows<T> values;

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    float group[kGroup];
    x.load_group(0, first, count, group);
    values.store_group(0, first, count, group);
  }
};

unsigned blocks_for(const Context& context, std::int64_t n) {
  return grid_size((n + kThreads - 1) / kThreads,
                   static_cast<std::int64_t>(context.multiprocessors()) * 32);
}

}  // namespace

void run(Context& context, const ops::StoreState& op) {
  op.check();
  const std::int64_t n = op.source.cols;
  if (is_plain_state(op.state.spec)) {
    with_rows(
        [&]<class T>(const Rows<T>& values) {
          const Round<T> body{rows_of<float>(op.source), values};
          launch_groups(context, 1, n, body, "store_state");
        },
        op.state.codes.flat());
    return;
  }
  const auto* const x = op.source.row<float>(0);
  const Codes state = codes_of(op.state, n);
  Extremes* extremes = nullptr;
  if (state.tiles > 0) {
    const auto bytes = static_cast<std::size_t>(state.tiles) * sizeof(Extremes);
    extremes = static_cast<Extremes*>(context.workspace(bytes));
    check(cudaMemsetAsync(extremes, 0, bytes, context.stream()), "cudaMemsetAsync");
    const std::int64_t parts_of_tile = (state.tile + kPart - 1) / kPart;
    const std::int64_t parts = state.tiles * parts_of_tile;
    const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 64;
    find_extremes<<<grid_size(parts, enough), kThreads, 0, context.stream()>>>(
        x, n, state.tile, parts_of_tile, parts, extremes);
    check_launch("store_state: extremes");
  }
  encode_elements<<<blocks_for(context, n), kThreads, 0, context.stream()>>>(x, n, extremes, op.key,
                                                                             state);
  check_launch("store_state");
}

void run(Context& context, const ops::LoadState& op) {
  op.check();
  if (is_plain_state(op.state.spec)) {
    return run(context, ops::Copy{op.state.codes.flat(), op.destination});
  }
  const std::int64_t n = op.destination.cols;
  decode_elements<<<blocks_for(context, n), kThreads, 0, context.stream()>>>(
      codes_of(op.state, n), n, op.destination.row<float>(0));
  check_launch("load_state");
}

}  // namespace fp8lab::cuda
