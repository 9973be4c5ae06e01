// Statistics of a logged operand: from source, codes and scales to the record, without the host.
//
//   source (R, C)    codes, scales         (the source of a transform along K is transformed first)
//        |             |      |
//        v             v      |
//   panel_kernel, one block for 128 x 256 elements (statistics_panel.cuh)
//        |          |              |             |          |
//     Tally       totals         amax         nonzero       |      Layout, in memory
//    (counts)   of panels,   (C) FP32 bits  (tiles) flags   |      that stays
//        |        FP64             |             |          v
//        | <--- scan_kernel: scales, one a thread: hash, zero tiles, extremes
//        v          v              v
//   finish_kernel, three blocks of 1024 threads an operand:
//     block 0     the sums: the panels of a band by ascending column, then the bands
//     block 1     top channels: the first of all, eight times
//     block 2     median: radix selection, digits of 8 bits: count 256 bins, keep the one with the
//                 rank; 4 passes, and one for the next channel
//     the last to finish: describe_statistics, the bytes of the record
//
// Of an operand, these blocks are a long chain and little work. So operands wait (Batch), until one
// launch finishes kMost of them, or until what they found fills the memory, or until their records
// are read (Context::catch_up). Source, codes and scales have been read by then.
//
// Counts, amaxes and the hash are integers, added or compared by atomics in any order. Every FP64
// addition has the order that ops/operand_statistics.hpp defines.
#include <algorithm>
#include <limits>
#include <memory>

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

/// What scan_kernel reads and writes.
struct Scan {
  TileGrid grid;
  bool transpose;
  const float* scales;  ///< nullptr: none
  std::int64_t rows, cols, stride;
  std::int64_t tiles;  ///< columns that hold scales; others hold what codebooks need besides
  const std::uint8_t* nonzero;
  Tally* tally;
};

/// What finish_kernel reads and writes for an operand.
struct Finish {
  std::int64_t elements, cols, tiles;
  std::int64_t bands, panels_across;
  PanelResults results;
  Found* found;
  std::uint8_t* record;
};

/// The operands of a launch, which takes up to 4 KB of arguments.
struct Finishes {
  static constexpr int kMost = 40;
  Finish of[kMost];
};
static_assert(sizeof(Finishes) <= 4096);

constexpr int kScanThreads = 1024;
constexpr int kFinishThreads = kRankThreads;
constexpr int kFinishBlocks = 3;  ///< of an operand
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
  Count zero_tiles, hash;
  std::uint32_t largest, smallest;  ///< keys

  /// The scale of a tile.
  __device__ void add(float scale, bool nonzero) {
    if (!nonzero) {
      ++zero_tiles;
    } else if (scale != 0.0f && scale == scale) {
      largest = max(largest, order_key(scale));
      smallest = max(smallest, ~order_key(scale));
    }
  }
  __device__ void add(const SeenScales& other) {
    zero_tiles += other.zero_tiles;
    hash += other.hash;
    largest = max(largest, other.largest);
    smallest = max(smallest, other.smallest);
  }
  /// Of all threads of a warp, which must call it.
  __device__ SeenScales of_warp() const {
    SeenScales all = *this;
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      all.add({__shfl_xor_sync(kAllLanes, all.zero_tiles, span),
               __shfl_xor_sync(kAllLanes, all.hash, span),
               __shfl_xor_sync(kAllLanes, all.largest, span),
               __shfl_xor_sync(kAllLanes, all.smallest, span)});
    }
    return all;
  }
  __device__ void give(Tally& tally) const {
    if (zero_tiles != 0) atomicAdd(&tally.zero_tiles, zero_tiles);
    if (hash != 0) atomicAdd(&tally.hash, hash);
    if (largest != 0) {
      atomicMax(&tally.largest_scale, largest);
      atomicMax(&tally.smallest_scale, smallest);
    }
  }
};

/// The scales; without scales the tensor is one tile of scale 1.
__global__ void __launch_bounds__(kScanThreads) scan_kernel(const __grid_constant__ Scan job) {
  constexpr int kWarps = kScanThreads / kWarpSize;
  static_assert(kWarps == kWarpSize);
  __shared__ SeenScales of_warps[kWarps];
  SeenScales seen{};
  const std::int64_t count = job.scales == nullptr ? 1 : job.rows * job.cols;
  const std::int64_t step = std::int64_t{gridDim.x} * kScanThreads;
  const bool small = count <= 0xFFFFFFFFu;  // whose divisions are short
  for (std::int64_t i = std::int64_t{blockIdx.x} * kScanThreads + threadIdx.x; i < count;
       i += step) {
    if (job.scales == nullptr) {
      seen.add(1.0f, job.nonzero[0] != 0);
      continue;
    }
    const std::int64_t row =
        small ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(job.cols) : i / job.cols;
    const std::int64_t col = i - row * job.cols;
    const float scale = job.scales[row * job.stride + col];
    seen.hash += numerics::hash_term(numerics::HashedPart::scales, static_cast<std::uint64_t>(i),
                                     float_bits(scale));
    if (col >= job.tiles) continue;
    const std::int64_t tile = job.transpose ? col * job.grid.wide + row : row * job.grid.wide + col;
    seen.add(scale, job.nonzero[tile] != 0);
  }
  seen = seen.of_warp();
  if (lane_id() == 0) of_warps[warp_id()] = seen;
  __syncthreads();
  if (warp_id() != 0) return;
  seen = of_warps[lane_id()].of_warp();
  if (lane_id() == 0) seen.give(*job.tally);
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
    parts.tiles = job.tiles;
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

/// True for all threads of the last block of an operand that calls it.
__device__ bool is_last_block(std::uint32_t* finished) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(finished, 1u) == kFinishBlocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// Blocks (kFinishBlocks, operands).
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ Finishes jobs) {
  __shared__ FinishMemory memory;
  const Finish& job = jobs.of[blockIdx.y];
  ChannelRanks& ranks = job.found->ranks;
  switch (blockIdx.x) {
    case 0: add_panels(job, memory); break;
    case 1: find_top_channels(job.results.channel_amax, job.cols, memory.ranks, ranks.top); break;
    default:
      find_medians(job.results.channel_amax, job.cols, memory.ranks, ranks.lower_median,
                   ranks.upper_median);
  }
  if (is_last_block(&job.results.tally->finished)) describe(job, memory);
}

/// Operands that wait for finish_kernel, and the memory of what was found of them.
class Batch final : public Postponed {
 public:
  /// The batch of a context.
  static Batch& of(Context& context) {
    if (context.postponed() == nullptr) context.postponed() = std::make_unique<Batch>();
    return static_cast<Batch&>(*context.postponed());
  }

  /// Memory of the operand that is added next.
  std::byte* memory(Context& context, std::size_t bytes) {
    if (used_ + bytes > capacity_) enqueue(context);
    capacity_ = std::max(capacity_, bytes);
    return static_cast<std::byte*>(context.postponed_memory(capacity_)) + used_;
  }
  /// `bytes` are those of its memory.
  void add(Context& context, const Finish& job, std::size_t bytes) {
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    jobs_.of[count_++] = job;
    if (count_ == Finishes::kMost) enqueue(context);
  }
  void enqueue(Context& context) override {
    if (count_ == 0) return;
    finish_kernel<<<dim3(kFinishBlocks, count_), kFinishThreads, 0, context.stream()>>>(jobs_);
    count_ = 0;
    used_ = 0;
    check_launch("operand_statistics: description");
  }

 private:
  static constexpr std::size_t kAlignment = 256;

  Finishes jobs_{};
  unsigned count_ = 0;
  std::size_t used_ = 0, capacity_ = std::size_t{1} << 25;
};

/// What is found of an operand: what must hold zeros at first, and what need not.
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
  Batch& batch = Batch::of(context);
  std::byte* const memory = batch.memory(context, layout.end);
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
  const Scan scan{grid,         op.transpose,      compared.decoder.scales,       scales.rows,
                  scales.cols,  scales.row_stride, compared.decoder.tiles_across, results.nonzero,
                  results.tally};
  const std::int64_t scan_blocks =
      std::clamp<std::int64_t>((scales.size() + kScanThreads - 1) / kScanThreads, 1,
                               std::int64_t{context.multiprocessors()} * 2);
  scan_kernel<<<static_cast<unsigned>(scan_blocks), kScanThreads, 0, context.stream()>>>(scan);
  check_launch("operand_statistics: scales");
  batch.add(
      context,
      {source.size(), source.cols, grid.count(), bands, across, results,
       reinterpret_cast<Found*>(memory + layout.found), static_cast<std::uint8_t*>(op.record.data)},
      layout.end);
}

}  // namespace fp8lab::cuda
