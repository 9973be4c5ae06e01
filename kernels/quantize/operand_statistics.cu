// Statistics of a logged operand: from source, codes and scales to the record, without the host.
//
//   source (R, C)    codes, scales         (the source of a transform along K is transformed first)
//        |             |      |
//        v             v      v
//   band_kernel, one block for 64 rows, 64 x 64 elements at a time in shared memory:
//   +--------------------------------------------------------------------+
//   | all warps:  read x and y = scale * decode(code); count, bin        |   repeated over
//   |             exponents, raise column amaxes, mark nonzero tiles     |   the columns
//   | warp 0..6:  add the block to one of the sums, 8 lanes each         |
//   | warp 7:     raise the column amaxes in global memory               |
//   +--------------------------------------------------------------------+
//        |            |                |                  |
//     Tally        totals            amax              nonzero             Layout, in the
//    (counts)  (bands, 7) FP64   (C) FP32 bits     (tiles) flags           workspace
//        ^            |                |                  |
//        |            |                |                  v
//        +------------|----------------|----- tile_kernel: zero tiles, extremes of scales
//        +------------|----------------|----- add_hash: codes, scales
//        |            |                v
//        |            |      rank_kernel, one block:
//        |            |        top channels   a list of 8 a thread, merged by lanes, then by warps
//        |            |        median         radix selection, digits of 8 bits: count 256 bins,
//        |            |                       keep the one with the rank; 4 passes
//        v            v                v
//   describe_kernel, one warp:
//     lanes 0..6   a sum each: the bands in ascending order
//     lane 0       describe_statistics
//     all          the bytes of the record
//
// Counts, amaxes and the hash are integers, added or compared by atomics in any order. Every FP64
// addition has the order that ops/operand_statistics.hpp defines.
#include "kernels/pointwise/hash_tensor.hpp"
#include "kernels/runtime/operations.hpp"

#include "emulation/numerics/operand_hash.hpp"
#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/describe_statistics.hpp"
#include "emulation/ops/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/channel_ranks.cuh"
#include "kernels/quantize/operand_decoder.cuh"
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/quantize_scales.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;

constexpr int kBand = kStatisticsBand;  ///< rows of a band, columns of a block
constexpr int kSums = 7;
static_assert(sizeof(StatisticsTotals) == kSums * sizeof(double));
constexpr int kThreads = 256;
static_assert(kThreads / kWarpSize >= kSums);

using Count = unsigned long long;  // what atomicAdd takes

/// What has no order. Zeros before: scales are kept as keys that only grow.
struct Tally {
  Count nonfinite, underflow, saturated, zero_tiles, hash;
  Count exponents[kExponentBins];
  std::uint32_t largest_scale, smallest_scale;  ///< keys; 0: none seen
};

/// Order of FP32 values as unsigned numbers above 0, NaN excepted.
FP8LAB_HD std::uint32_t order_key(float value) {
  const std::uint32_t bits = float_bits(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
FP8LAB_HD float value_of_key(std::uint32_t key) {
  return bits_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// The operand as the kernels read it, in the orientation of the source.
struct Compared {
  std::int64_t rows, cols;  ///< of the source
  bool transpose;
  TileGrid grid;
  Decoder decoder;
  const float* compensation;  ///< bounds of a compensated clamp; nullptr: none

  __device__ float value(std::int64_t row, std::int64_t col) const {
    return transpose ? decoder(col, row) : decoder(row, col);
  }
  __device__ float scale(std::int64_t tile_row, std::int64_t tile_col) const {
    if (decoder.scales == nullptr) return 1.0f;
    return transpose ? decoder.scales[tile_col * decoder.scale_stride + tile_row]
                     : decoder.scales[tile_row * decoder.scale_stride + tile_col];
  }
};

/// A block of 64 x 64 elements of source and operand, zeros where either is not finite; rows padded
/// so that a column of them is spread over the banks.
struct Elements {
  float x[kBand][kBand + 1], y[kBand][kBand + 1];
};

/// What the threads of a block count.
struct Counters {
  std::uint32_t nonfinite, underflow, saturated;
  std::uint32_t exponents[kExponentBins];
  std::uint32_t channel_amax[kBand];
};

__device__ void count_element(float x, float y, float limit, int col, Counters& counters) {
  const std::uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu;
  const std::uint32_t operand = float_bits(y) & 0x7FFFFFFFu;
  if (magnitude <= numerics::kF32Infinity && magnitude > float_bits(limit)) {
    atomicAdd(&counters.saturated, 1u);
  }
  if (magnitude >= numerics::kF32Infinity || operand >= numerics::kF32Infinity) {
    atomicAdd(&counters.nonfinite, 1u);
  } else if (magnitude != 0) {
    if (operand == 0) atomicAdd(&counters.underflow, 1u);
    const int bin = static_cast<int>(magnitude >> 23) - 127 - kLowestBinExponent;
    atomicAdd(&counters.exponents[min(max(bin, 0), kExponentBins - 1)], 1u);
    if (magnitude > counters.channel_amax[col]) {
      atomicMax(&counters.channel_amax[col], magnitude);
    }
  }
}

/// Reads the block at (row0, col0); nonzero[tile] = 1 for the tiles of nonzero elements.
template <class T>
__device__ void read_block(const Rows<T>& source, const Compared& compared, std::int64_t row0,
                           std::int64_t col0, Elements& elements, Counters& counters,
                           std::uint8_t* nonzero) {
  // Neighbouring threads read neighbouring codes.
  const int near = static_cast<int>(threadIdx.x) % kBand;
  std::int64_t tile = -1;
  float limit = 0.0f;
  bool marked = false;
  for (int far = static_cast<int>(threadIdx.x) / kBand; far < kBand; far += kThreads / kBand) {
    const int i = compared.transpose ? near : far, j = compared.transpose ? far : near;
    const std::int64_t row = row0 + i, col = col0 + j;
    if (row >= compared.rows || col >= compared.cols) {
      elements.x[i][j] = elements.y[i][j] = 0.0f;
      continue;
    }
    const std::int64_t tile_row = row / compared.grid.height, tile_col = col / compared.grid.width;
    if (tile_row * compared.grid.wide + tile_col != tile) {
      tile = tile_row * compared.grid.wide + tile_col;
      limit = saturation_limit(compared.decoder.format, compared.scale(tile_row, tile_col));
      marked = false;
    }
    const float x = source.load(row, col);
    float y = compared.value(row, col);
    if (compared.compensation != nullptr) {
      y += numerics::clamp_residual({compared.compensation[0], compared.compensation[1]}, x);
    }
    count_element(x, y, limit, j, counters);
    if (!marked && (float_bits(x) & 0x7FFFFFFFu) != 0) {
      nonzero[tile] = 1;
      marked = true;
    }
    const bool finite = (float_bits(x) & 0x7FFFFFFFu) < numerics::kF32Infinity &&
                        (float_bits(y) & 0x7FFFFFFFu) < numerics::kF32Infinity;
    elements.x[i][j] = finite ? x : 0.0f;
    elements.y[i][j] = finite ? y : 0.0f;
  }
}

/// One element's term of sum `which`, in the order of StatisticsTotals.
template <int kWhich>
__device__ double term(float x_value, float y_value) {
  const double x = x_value, y = y_value;
  switch (kWhich) {
    case 0: return x * x;
    case 1: return (x * x) * (x * x);
    case 2: return x * y;
    case 3: return y * y;
    case 4: return (y - x) * (y - x);
    case 5: return y - x;
    default: return fabs(x);
  }
}

/// Adds a block to one lane of one sum: by ascending row, then column. Zeros outside the source
/// change nothing, as a lane is never -0.
template <int kWhich>
__device__ void add_block(const Elements& elements, int rows, int lane, double& sum) {
  for (int i = 0; i < rows; ++i) {
#pragma unroll
    for (int j = 0; j < kBand; j += kStatisticsLanes) {
      sum += term<kWhich>(elements.x[i][j + lane], elements.y[i][j + lane]);
    }
  }
}

__device__ void add_block(int which, const Elements& elements, int rows, int lane, double& sum) {
  switch (which) {
    case 0: return add_block<0>(elements, rows, lane, sum);
    case 1: return add_block<1>(elements, rows, lane, sum);
    case 2: return add_block<2>(elements, rows, lane, sum);
    case 3: return add_block<3>(elements, rows, lane, sum);
    case 4: return add_block<4>(elements, rows, lane, sum);
    case 5: return add_block<5>(elements, rows, lane, sum);
    default: return add_block<6>(elements, rows, lane, sum);
  }
}

/// One block a band. A warp has one of the sums, and of it the first lanes one lane each.
/// totals (bands, kSums); channel_amax holds zeros before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    band_kernel(Rows<T> source, const __grid_constant__ Compared compared, double* totals,
                std::uint32_t* channel_amax, std::uint8_t* nonzero, Tally* tally) {
  __shared__ Elements elements;
  __shared__ Counters counters;
  auto* words = reinterpret_cast<std::uint32_t*>(&counters);
  constexpr int kWords = sizeof(Counters) / sizeof(std::uint32_t);
  for (int i = threadIdx.x; i < kWords; i += kThreads) words[i] = 0;
  const std::int64_t row0 = std::int64_t{blockIdx.x} * kBand;
  const int rows = static_cast<int>(min(compared.rows - row0, std::int64_t{kBand}));
  const bool adds = warp_id() < kSums && lane_id() < kStatisticsLanes;
  double sum = 0.0;
  for (std::int64_t col0 = 0; col0 < compared.cols; col0 += kBand) {
    __syncthreads();
    read_block(source, compared, row0, col0, elements, counters, nonzero);
    __syncthreads();
    if (adds) add_block(warp_id(), elements, rows, lane_id(), sum);
    // The last warp has no sum.
    for (int j = lane_id(); warp_id() == kSums && j < kBand; j += kWarpSize) {
      if (counters.channel_amax[j] != 0) {
        atomicMax(&channel_amax[col0 + j], counters.channel_amax[j]);
      }
      counters.channel_amax[j] = 0;
    }
  }
  for (int span = kStatisticsLanes / 2; span > 0; span /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, span);
  }
  if (warp_id() < kSums && lane_id() == 0) totals[blockIdx.x * kSums + warp_id()] = sum;
  for (int i = threadIdx.x; i < kExponentBins; i += kThreads) {
    if (counters.exponents[i] != 0) atomicAdd(&tally->exponents[i], Count{counters.exponents[i]});
  }
  if (threadIdx.x == 0) {
    atomicAdd(&tally->nonfinite, Count{counters.nonfinite});
    atomicAdd(&tally->underflow, Count{counters.underflow});
    atomicAdd(&tally->saturated, Count{counters.saturated});
  }
}

/// Zero tiles, and the extremes of the other tiles' scales.
__global__ void tile_kernel(const __grid_constant__ Compared compared, const std::uint8_t* nonzero,
                            Tally* tally) {
  Count zero = 0;
  std::uint32_t largest = 0, smallest = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t tile = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       tile < compared.grid.count(); tile += step) {
    if (nonzero[tile] == 0) {
      ++zero;
      continue;
    }
    const float scale = compared.scale(tile / compared.grid.wide, tile % compared.grid.wide);
    if (scale == 0.0f || scale != scale) continue;
    largest = max(largest, order_key(scale));
    smallest = max(smallest, ~order_key(scale));
  }
  if (zero != 0) atomicAdd(&tally->zero_tiles, zero);
  largest = __reduce_max_sync(kAllLanes, largest);
  smallest = __reduce_max_sync(kAllLanes, smallest);
  if (lane_id() != 0) return;
  atomicMax(&tally->largest_scale, largest);
  atomicMax(&tally->smallest_scale, smallest);
}

/// What is described.
struct Measured {
  std::int64_t elements, bands, tiles;
};

/// Parts that lie in the tally.
__device__ void read_tally(const Tally& tally, StatisticsParts& parts) {
  parts.counts.nonfinite = static_cast<std::int64_t>(tally.nonfinite);
  parts.counts.underflow = static_cast<std::int64_t>(tally.underflow);
  parts.counts.saturated = static_cast<std::int64_t>(tally.saturated);
  for (int i = 0; i < kExponentBins; ++i) {
    parts.counts.exponents[i] = static_cast<std::int64_t>(tally.exponents[i]);
  }
  parts.zero_tiles = static_cast<std::int64_t>(tally.zero_tiles);
  parts.hash = tally.hash;
  const bool scaled = tally.largest_scale != 0;
  parts.largest_scale = scaled ? fmaxf(0.0f, value_of_key(tally.largest_scale)) : 0.0f;
  parts.smallest_scale = scaled ? value_of_key(~tally.smallest_scale) : 0.0f;
}

/// Sum `which` over the bands, in ascending order; the loads run ahead of the additions.
__device__ double sum_bands(const double* totals, std::int64_t bands, int which) {
  double sum = 0.0;
#pragma unroll 16
  for (std::int64_t band = 0; band < bands; ++band) sum += totals[band * kSums + which];
  return sum;
}

/// One block.
__global__ void __launch_bounds__(kRankThreads)
    rank_kernel(const std::uint32_t* channel_amax, std::int64_t cols, ChannelRanks* ranks) {
  __shared__ RankMemory memory;
  rank_channels(channel_amax, cols, memory, *ranks);
}

/// One warp. Writes the OperandStatistics, at any address.
__global__ void __launch_bounds__(kWarpSize)
    describe_kernel(Measured measured, const Tally* tally, const ChannelRanks* ranks,
                    const double* totals, std::uint8_t* record) {
  __shared__ StatisticsParts parts;
  __shared__ OperandStatistics statistics;
  if (lane_id() < kSums) {
    reinterpret_cast<double*>(&parts.sums)[lane_id()] =
        sum_bands(totals, measured.bands, lane_id());
  }
  __syncwarp();
  if (lane_id() == 0) {
    parts.elements = measured.elements;
    parts.tiles = measured.tiles;
    parts.channels = *ranks;
    read_tally(*tally, parts);
    statistics = describe_statistics(parts);
  }
  __syncwarp();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&statistics);
  for (int i = lane_id(); i < static_cast<int>(sizeof statistics); i += kWarpSize) {
    record[i] = bytes[i];
  }
}

unsigned blocks_for(const Context& context, std::int64_t items) {
  return grid_size((items + kThreads - 1) / kThreads,
                   static_cast<std::int64_t>(context.multiprocessors()) * 8);
}

/// The workspace: tally, ranks of the channels, sums of the bands, column amaxes, a flag for each
/// tile; zeros at first.
struct Layout {
  static constexpr std::size_t kRanks = sizeof(Tally);
  std::size_t totals, amax, nonzero, end;

  Layout(const Measured& measured, std::int64_t cols)
      : totals(kRanks + sizeof(ChannelRanks)),
        amax(totals + static_cast<std::size_t>(measured.bands) * sizeof(StatisticsTotals)),
        nonzero(amax + static_cast<std::size_t>(cols) * sizeof(std::uint32_t)),
        end(nonzero + static_cast<std::size_t>(measured.tiles)) {}
};

void hash_operand(Context& context, const QuantizedOperand& operand, HashSum* total) {
  constexpr auto kCodes = numerics::HashedPart::codes;
  if (operand.has_rows_contiguous()) {
    add_transposed_hash(context, kCodes, operand.codes, total);
  } else {
    add_hash(context, kCodes, operand.codes, sizeof(std::uint64_t), 0, total);
  }
  if (operand.scales.empty()) return;
  add_hash(context, numerics::HashedPart::scales, operand.scales, sizeof(float), 0, total);
}

}  // namespace

void run(Context& context, const ops::MeasureOperand& op) {
  op.check();
  const TensorView& original = op.source;
  const QuantizedOperand& operand = op.operand;
  const bool transpose = op.transpose;
  check_supported("operand_statistics", operand);
  const TensorView source = operand.spec.transform.is_linear()
                                ? transformed(context, original, transpose, operand)
                                : original;
  const bool compensated = operand.spec.transform.compensated;
  if (compensated) check_transform(operand, operand.rows, operand.k);
  const Compared compared{
      source.rows,         source.cols,
      transpose,           tile_grid(source, operand.spec.scale_tile(), transpose),
      decoder_of(operand), compensated ? operand.clamp_bounds.row<float>(0) : nullptr};
  const Measured measured{source.size(), (source.rows + kBand - 1) / kBand, compared.grid.count()};
  const Layout layout(measured, source.cols);
  auto* memory = static_cast<std::byte*>(context.workspace(layout.end));
  auto* tally = reinterpret_cast<Tally*>(memory);
  auto* ranks = reinterpret_cast<ChannelRanks*>(memory + Layout::kRanks);
  auto* totals = reinterpret_cast<double*>(memory + layout.totals);
  auto* amax = reinterpret_cast<std::uint32_t*>(memory + layout.amax);
  auto* nonzero = reinterpret_cast<std::uint8_t*>(memory + layout.nonzero);
  check(cudaMemsetAsync(memory, 0, layout.end, context.stream()), "cudaMemsetAsync");
  with_rows(
      [&](const auto& rows) {
        band_kernel<<<static_cast<unsigned>(measured.bands), kThreads, 0, context.stream()>>>(
            rows, compared, totals, amax, nonzero, tally);
      },
      source);
  check_launch("operand_statistics: bands");
  tile_kernel<<<blocks_for(context, measured.tiles), kThreads, 0, context.stream()>>>(
      compared, nonzero, tally);
  check_launch("operand_statistics: tiles");
  hash_operand(context, operand, &tally->hash);
  rank_kernel<<<1, kRankThreads, 0, context.stream()>>>(amax, source.cols, ranks);
  check_launch("operand_statistics: channels");
  describe_kernel<<<1, kWarpSize, 0, context.stream()>>>(
      measured, tally, ranks, totals, static_cast<std::uint8_t*>(op.record.data));
  check_launch("operand_statistics: description");
}

}  // namespace fp8lab::cuda
