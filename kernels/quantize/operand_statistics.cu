// Statistics of a logged operand: from source, codes and scales to the record, without the host.
//
//   source (R, C)    codes, scales         (the source of a transform along K is transformed first)
//        |             |      |
//        v             v      |
//   panel_kernel, one block for 128 x 256 elements (statistics_panel.cuh)
//        |          |              |             |          |
//     Tally       totals         amax         nonzero       |      Layout, in the
//    (counts)   of panels,   (C) FP32 bits  (tiles) flags   |      workspace
//        |        FP64             |             |          |
//        v          v              v             v          v
//   finish_kernel, blocks of 1024 threads:
//     block 0     the sums: the panels of a band by ascending column, then the bands
//     block 1     top channels: the first of all, eight times
//     block 2     median: radix selection, digits of 8 bits: count 256 bins, keep the one with the
//                 rank; 4 passes, and one for the next channel
//     others      scales, one a thread: hash, zero tiles, extremes
//     the last to finish: describe_statistics, the bytes of the record
//
// Counts, amaxes and the hash are integers, added or compared by atomics in any order. Every FP64
// addition has the order that ops/operand_statistics.hpp defines.
#include <algorithm>
#include <limits>

#include "kernels/runtime/operations.hpp"

#include "emulation/ops/operand_checks.hpp"
#include "kernels/quantize/channel_ranks.cuh"
#include "kernels/quantize/statistics_panel.cuh"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;

/// Order of FP32 values as unsigned numbers above 0, NaN excepted.
FP8LAB_HD std::uint32_t order_key(float value) {
  const std::uint32_t bits = float_bits(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
FP8LAB_HD float value_of_key(std::uint32_t key) {
  return bits_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// What single blocks of finish_kernel find.
struct Found {
  StatisticsTotals sums;
  ChannelRanks ranks;
};

/// What finish_kernel reads and writes.
struct Finish {
  std::int64_t elements, cols;
  std::int64_t bands, panels_across;
  TileGrid grid;
  bool transpose;
  const float* scales;  ///< nullptr: none
  std::int64_t scale_rows, scale_cols, scale_stride;
  std::int64_t scale_tiles;  ///< columns that hold scales; others hold what codebooks need besides
  PanelResults results;
  Found* found;
  std::uint8_t* record;
};

constexpr int kFinishThreads = kRankThreads;
constexpr int kFixedBlocks = 3;
constexpr int kBandsAtOnce = 128;

union FinishMemory {
  RankMemory ranks;
  double bands[kBandsAtOnce][kStatisticsSums];
  struct {
    StatisticsParts parts;
    OperandStatistics statistics;
  } record;
};

/// The panels of each band by ascending column, a thread for a band and one of the sums; the bands
/// by ascending row.
__device__ void add_panels(const Finish& job, FinishMemory& memory) {
  const auto* totals = reinterpret_cast<const double*>(job.results.totals);
  const int which = static_cast<int>(threadIdx.x) % kStatisticsSums;
  const int slot = static_cast<int>(threadIdx.x) / kStatisticsSums;
  double sum = 0.0;
  for (std::int64_t first = 0; first < job.bands; first += kBandsAtOnce) {
    const int bands = static_cast<int>(min(job.bands - first, std::int64_t{kBandsAtOnce}));
    if (slot < bands) {
      const double* panel = totals + (first + slot) * job.panels_across * kStatisticsSums + which;
      double band = 0.0;
#pragma unroll 16
      for (std::int64_t i = 0; i < job.panels_across; ++i) band += panel[i * kStatisticsSums];
      memory.bands[slot][which] = band;
    }
    __syncthreads();
    if (slot == 0) {
#pragma unroll 8
      for (int i = 0; i < bands; ++i) sum += memory.bands[i][which];
    }
    __syncthreads();
  }
  static_assert(kFinishThreads >= kBandsAtOnce * kStatisticsSums);
  if (slot == 0) reinterpret_cast<double*>(&job.found->sums)[which] = sum;
}

/// What a thread finds among scales.
struct SeenScales {
  Count zero_tiles = 0, hash = 0;
  std::uint32_t largest = 0, smallest = 0;  ///< keys

  /// The scale of a tile.
  __device__ void add(float scale, bool nonzero) {
    if (!nonzero) {
      ++zero_tiles;
    } else if (scale != 0.0f && scale == scale) {
      largest = max(largest, order_key(scale));
      smallest = max(smallest, ~order_key(scale));
    }
  }
  /// All threads of a warp must call it.
  __device__ void give(Tally& tally) const {
    Count zero_sum = zero_tiles, hash_sum = hash;
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      zero_sum += __shfl_xor_sync(kAllLanes, zero_sum, span);
      hash_sum += __shfl_xor_sync(kAllLanes, hash_sum, span);
    }
    const std::uint32_t upper = __reduce_max_sync(kAllLanes, largest);
    const std::uint32_t lower = __reduce_max_sync(kAllLanes, smallest);
    if (lane_id() != 0) return;
    if (zero_sum != 0) atomicAdd(&tally.zero_tiles, zero_sum);
    if (hash_sum != 0) atomicAdd(&tally.hash, hash_sum);
    if (upper != 0) {
      atomicMax(&tally.largest_scale, upper);
      atomicMax(&tally.smallest_scale, lower);
    }
  }
};

/// This block's share of the scales; without scales the tensor is one tile of scale 1.
__device__ void scan_scales(const Finish& job) {
  SeenScales seen;
  const std::int64_t count = job.scales == nullptr ? 1 : job.scale_rows * job.scale_cols;
  const std::int64_t step = std::int64_t{gridDim.x - kFixedBlocks} * kFinishThreads;
  const bool small = count <= 0xFFFFFFFFu;  // whose divisions are short
  for (std::int64_t i = std::int64_t{blockIdx.x - kFixedBlocks} * kFinishThreads + threadIdx.x;
       i < count; i += step) {
    if (job.scales == nullptr) {
      seen.add(1.0f, job.results.nonzero[0] != 0);
      continue;
    }
    const std::int64_t row =
        small ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(job.scale_cols)
              : i / job.scale_cols;
    const std::int64_t col = i - row * job.scale_cols;
    const float scale = job.scales[row * job.scale_stride + col];
    seen.hash += numerics::hash_term(numerics::HashedPart::scales, static_cast<std::uint64_t>(i),
                                     float_bits(scale));
    if (col >= job.scale_tiles) continue;
    const std::int64_t tile = job.transpose ? col * job.grid.wide + row : row * job.grid.wide + col;
    seen.add(scale, job.results.nonzero[tile] != 0);
  }
  seen.give(*job.results.tally);
}

/// Parts that lie in the tally.
__device__ void read_tally(const Tally& tally, StatisticsParts& parts) {
  parts.counts.nonfinite = static_cast<std::int64_t>(tally.nonfinite);
  parts.counts.underflow = static_cast<std::int64_t>(tally.underflow);
  parts.counts.saturated = static_cast<std::int64_t>(tally.saturated);
  parts.zero_tiles = static_cast<std::int64_t>(tally.zero_tiles);
  parts.hash = tally.hash;
  const bool scaled = tally.largest_scale != 0;
  parts.largest_scale = scaled ? fmaxf(0.0f, value_of_key(tally.largest_scale)) : 0.0f;
  parts.smallest_scale = scaled ? value_of_key(~tally.smallest_scale) : 0.0f;
}

/// Writes the OperandStatistics, at any address.
__device__ void describe(const Finish& job, FinishMemory& memory) {
  StatisticsParts& parts = memory.record.parts;
  OperandStatistics& statistics = memory.record.statistics;
  const int thread = threadIdx.x;
  const Tally& tally = *job.results.tally;
  if (thread < kExponentBins) {
    parts.counts.exponents[thread] = static_cast<std::int64_t>(tally.exponents[thread]);
  }
  if (thread == 0) {
    parts.elements = job.elements;
    parts.tiles = job.grid.count();
    parts.sums = job.found->sums;
    parts.channels = job.found->ranks;
    read_tally(tally, parts);
    describe_scalars(parts, statistics);
  }
  __syncthreads();
  if (thread < kExponentBins) {
    statistics.exponent_histogram[thread] =
        exponent_fraction(parts.counts, exponents_counted(parts.counts), thread);
  }
  __syncthreads();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&statistics);
  for (int i = thread; i < static_cast<int>(sizeof statistics); i += kFinishThreads) {
    job.record[i] = bytes[i];
  }
}

/// True for all threads of the last block that calls it.
__device__ bool is_last_block(std::uint32_t* finished) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ Finish job) {
  __shared__ FinishMemory memory;
  ChannelRanks& ranks = job.found->ranks;
  switch (blockIdx.x) {
    case 0: add_panels(job, memory); break;
    case 1: find_top_channels(job.results.channel_amax, job.cols, memory.ranks, ranks.top); break;
    case 2:
      find_medians(job.results.channel_amax, job.cols, memory.ranks, ranks.lower_median,
                   ranks.upper_median);
      break;
    default: scan_scales(job);
  }
  if (is_last_block(&job.results.tally->finished)) describe(job, memory);
}

/// The workspace: what must hold zeros at first, and what need not.
struct Layout {
  std::size_t amax, nonzero, zeros, found, totals, end;

  Layout(std::int64_t cols, std::int64_t tiles, std::int64_t panels)
      : amax(sizeof(Tally)),
        nonzero(amax + static_cast<std::size_t>(cols) * sizeof(std::uint32_t)),
        zeros(nonzero + static_cast<std::size_t>(tiles)),
        found((zeros + alignof(Found) - 1) / alignof(Found) * alignof(Found)),
        totals(found + sizeof(Found)),
        end(totals + static_cast<std::size_t>(panels) * sizeof(StatisticsTotals)) {}
};

/// The panels of a source, and how many lie side by side.
struct Panels {
  std::int64_t count, across;
};

template <class T, Stored kStored, bool kWide>
void launch_panels(Context& context, const TensorView& source, const TensorView& codes,
                   const Compared& compared, const Panels& panels, const PanelResults& results) {
  panel_kernel<T, kStored, kWide>
      <<<static_cast<unsigned>(panels.count), kPanelThreads, 0, context.stream()>>>(
          lines_of<T>(source), lines_of<StoredBits<kStored>>(codes), compared,
          static_cast<unsigned>(panels.across), results);
  check_launch("operand_statistics: panels");
}

/// T is the type of the source.
template <class T>
void launch_panels(Context& context, const TensorView& source, const QuantizedOperand& operand,
                   const Compared& compared, const Panels& panels, const PanelResults& results) {
  const TensorView& codes = operand.codes;
  const bool wide = compared.grid.wide == 1 || compared.grid.width % kGroup == 0;
  const bool e4m3 = operand.spec.format == numerics::kE4M3;
  const auto launch = [&](auto kernel) {
    kernel(context, source, codes, compared, panels, results);
  };
  if (codes.dtype == DType::bf16) {
    launch(launch_panels<T, Stored::bf16, true>);
  } else if (codes.dtype == DType::f32) {
    launch(launch_panels<T, Stored::f32, true>);
  } else if (compared.decoder.codebooks != Codebooks::none) {
    launch(launch_panels<T, Stored::codebooks, false>);
  } else if (e4m3 && wide) {
    launch(launch_panels<T, Stored::e4m3, true>);
  } else if (e4m3) {
    launch(launch_panels<T, Stored::e4m3, false>);
  } else if (wide) {
    launch(launch_panels<T, Stored::codes, true>);
  } else {
    launch(launch_panels<T, Stored::codes, false>);
  }
}

/// The value of Compared::qmax.
double largest_code(const QuantSpec& spec) {
  if (spec.transform.is_expansion()) return std::numeric_limits<double>::infinity();
  return numerics::max_finite(spec.format);
}

/// `source` is what was quantized.
Compared comparison(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  const auto word = static_cast<std::int64_t>(sizeof(std::uint64_t) / size_of(operand.codes.dtype));
  return {source.rows,
          source.cols,
          transpose,
          transpose != operand.has_rows_contiguous(),
          (operand.k + word - 1) / word,
          tile_grid(source, operand.spec.scale_tile(), transpose),
          decoder_of(operand),
          largest_code(operand.spec),
          operand.spec.transform.is_compensated() ? operand.clamp_bounds.row<float>(0) : nullptr};
}

}  // namespace

void run(Context& context, const ops::MeasureOperand& op) {
  op.check();
  const QuantizedOperand& operand = op.operand;
  const bool moves = operand.spec.transform.is_linear() || operand.source_space;
  const TensorView source =
      moves ? transformed_whole(context, op.source, op.transpose, operand) : op.source;
  if (operand.spec.transform.is_compensated()) check_transform(operand, operand.rows, operand.k);
  const Compared compared = comparison(source, op.transpose, operand);
  const TileGrid& grid = compared.grid;
  const std::int64_t bands =
      (source.rows + StatisticsOrder::kPanelRows - 1) / StatisticsOrder::kPanelRows;
  const std::int64_t across =
      (source.cols + StatisticsOrder::kPanelCols - 1) / StatisticsOrder::kPanelCols;
  const Layout layout(source.cols, grid.count(), bands * across);
  auto* memory = static_cast<std::byte*>(context.workspace(layout.end));
  const PanelResults results{reinterpret_cast<StatisticsTotals*>(memory + layout.totals),
                             reinterpret_cast<std::uint32_t*>(memory + layout.amax),
                             reinterpret_cast<std::uint8_t*>(memory + layout.nonzero),
                             reinterpret_cast<Tally*>(memory)};
  check(cudaMemsetAsync(memory, 0, layout.zeros, context.stream()), "cudaMemsetAsync");
  const Panels panels{bands * across, across};
  if (source.dtype == DType::bf16) {
    launch_panels<std::uint16_t>(context, source, operand, compared, panels, results);
  } else {
    launch_panels<float>(context, source, operand, compared, panels, results);
  }
  const TensorView& scales = operand.scales;
  const Finish finish{source.size(),
                      source.cols,
                      bands,
                      across,
                      grid,
                      op.transpose,
                      compared.decoder.scales,
                      scales.rows,
                      scales.cols,
                      scales.row_stride,
                      compared.decoder.tiles_across,
                      results,
                      reinterpret_cast<Found*>(memory + layout.found),
                      static_cast<std::uint8_t*>(op.record.data)};
  const std::int64_t scale_blocks =
      std::clamp<std::int64_t>((scales.size() + kFinishThreads - 1) / kFinishThreads, 1,
                               std::int64_t{context.multiprocessors()} * 2);
  finish_kernel<<<static_cast<unsigned>(kFixedBlocks + scale_blocks), kFinishThreads, 0,
                  context.stream()>>>(finish);
  check_launch("operand_statistics: description");
}

}  // namespace fp8lab::cuda
