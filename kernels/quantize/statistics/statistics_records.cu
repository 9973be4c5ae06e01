// The end of the statistics, in two kernels.
//
//   scan_kernel    the scales, one a thread: hash, zero tiles, extremes. Runs at once, because the
//                  scales may be overwritten before the records are read
//   finish_kernel  three blocks of 1024 threads an operand:
//     block 0      the sums: the panels of a band by ascending column, then the bands
//     block 1      top channels: the maximum, eight times
//     block 2      median: radix selection, digits of 8 bits: count 256 bins, keep the one with the
//                  rank; 4 passes, and one for the next channel
//     the last to finish: describe_statistics, the bytes of the record
//
// For one operand these blocks are a long dependency chain with little work. So records are
// postponed until one launch finishes kMost of them, until their inputs fill the memory, or until
// they are read (Context::catch_up).
#include "kernels/quantize/statistics/statistics_records.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/quantize/statistics/channel_ranks.cuh"
#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;

/// Returns a key that orders FP32 values, NaN excepted, as unsigned numbers above 0.
FP8LAB_HD std::uint32_t order_key(float value) {
  const std::uint32_t bits = float_bits(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
FP8LAB_HD float value_of_key(std::uint32_t key) {
  return bits_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// The operands of one launch.
struct ScaleScans {
  ScaleScan of[kMostOperands];
};

constexpr int kScanThreads = 256;
constexpr int kFinishThreads = kRankThreads;
constexpr int kFinishBlocks = 3;  ///< for one operand
constexpr int kBandsAtOnce = 128;

union FinishMemory {
  RankMemory ranks;
  double bands[kBandsAtOnce][kStatisticsSums];
  struct {
    StatisticsParts parts;
    OperandStatistics statistics;
  } record;
};

/// Adds the panels of each band by ascending column, with one thread for each band and sum, then
/// the bands by ascending row.
__device__ void add_panels(const UnfinishedRecord& job, FinishMemory& memory) {
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

/// Results of a thread's scales.
struct SeenScales {
  Count zero_tiles, hash;
  std::uint32_t largest, smallest;  ///< keys

  /// Adds the scale of a tile.
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
  /// Returns the combined result of a warp. Precondition: all threads of the warp call it.
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

/// Number of a row's scales that a thread reads together. If the operand is the transpose,
/// consecutive lanes take consecutive rows: flags of tiles are in the order of the source, so lanes
/// read neighbouring flags.
constexpr int kScanned = 8;

__device__ void scan_group(const ScaleScan& job, std::int64_t row, std::int64_t first,
                           SeenScales& seen) {
  const int count = static_cast<int>(min(job.cols - first, std::int64_t{kScanned}));
  const float* scales = job.scales + row * job.stride + first;
  const std::uint8_t* nonzero =
      job.nonzero + (job.transpose ? first * job.grid.wide + row : row * job.grid.wide + first);
  const std::int64_t step = job.transpose ? job.grid.wide : 1;
  float values[kScanned];
  bool nonzeros[kScanned];
#pragma unroll
  for (int i = 0; i < kScanned; ++i) {
    values[i] = i < count ? scales[i] : 0.0f;
    nonzeros[i] = i < count && first + i < job.tiles && nonzero[i * step] != 0;
  }
  const auto word = static_cast<std::uint64_t>(row * job.cols + first);
#pragma unroll
  for (int i = 0; i < kScanned; ++i) {
    if (i >= count) break;
    seen.hash += numerics::hash_term(numerics::HashedPart::scales, word + i, float_bits(values[i]));
    if (first + i < job.tiles) seen.add(values[i], nonzeros[i]);
  }
}

/// Grid: (any number, operands). Without scales the tensor is one tile of scale 1.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(const __grid_constant__ ScaleScans jobs) {
  constexpr int kWarps = kScanThreads / kWarpSize;
  __shared__ SeenScales of_warps[kWarps];
  const ScaleScan& job = jobs.of[blockIdx.y];
  SeenScales seen{};
  const std::int64_t groups_across = (job.cols + kScanned - 1) / kScanned;
  const std::int64_t groups = job.scales == nullptr ? 0 : job.rows * groups_across;
  const std::int64_t inner = job.transpose ? job.rows : groups_across;
  const std::int64_t step = std::int64_t{gridDim.x} * kScanThreads;
  const bool small = groups <= 0xFFFFFFFFu;  // then divisions take 32 bits
  const std::int64_t thread = std::int64_t{blockIdx.x} * kScanThreads + threadIdx.x;
  if (job.scales == nullptr && thread == 0) seen.add(1.0f, job.nonzero[0] != 0);
  for (std::int64_t i = thread; i < groups; i += step) {
    const std::int64_t outer =
        small ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(inner) : i / inner;
    const std::int64_t within = i - outer * inner;
    scan_group(job, job.transpose ? within : outer, kScanned * (job.transpose ? outer : within),
               seen);
  }
  seen = seen.of_warp();
  if (lane_id() == 0) of_warps[warp_id()] = seen;
  __syncthreads();
  if (warp_id() != 0) return;
  seen = (lane_id() < kWarps ? of_warps[lane_id()] : SeenScales{}).of_warp();
  if (lane_id() == 0) seen.give(*job.tally);
}

/// Copies the results in the tally to `parts`.
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

/// Writes the OperandStatistics; the destination needs no alignment.
__device__ void describe(const UnfinishedRecord& job, FinishMemory& memory) {
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

/// Returns true in all threads of the operand's last block that calls it. Precondition: every
/// thread of a block calls it.
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

/// Grid: (kFinishBlocks, operands).
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ UnfinishedRecords::Launch jobs) {
  __shared__ FinishMemory memory;
  const UnfinishedRecord& job = jobs.of[blockIdx.y];
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

}  // namespace

void scan_scales(Context& context, const ScaleScan* scans, int count) {
  ScaleScans jobs{};
  std::int64_t most = 1;
  for (int i = 0; i < count; ++i) {
    jobs.of[i] = scans[i];
    if (scans[i].scales == nullptr) continue;
    most = std::max(most, scans[i].rows * ((scans[i].cols + kScanned - 1) / kScanned));
  }
  const std::int64_t blocks = std::clamp<std::int64_t>((most + kScanThreads - 1) / kScanThreads, 1,
                                                       std::int64_t{context.multiprocessors()} * 8);
  scan_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), kScanThreads, 0,
                context.stream()>>>(jobs);
  check_launch("operand_statistics: scales");
}

UnfinishedRecords& UnfinishedRecords::of(Context& context) {
  if (context.postponed() == nullptr) context.postponed() = std::make_unique<UnfinishedRecords>();
  return static_cast<UnfinishedRecords&>(*context.postponed());
}

std::byte* UnfinishedRecords::memory(Context& context, std::size_t bytes, int count) {
  if (count_ + count > kMost || used_ + bytes > capacity_) enqueue(context);
  capacity_ = std::max(capacity_, bytes);
  auto* const memory = static_cast<std::byte*>(context.postponed_memory(capacity_));
  if (memory != memory_ || zeroed_ < capacity_) {
    check(cudaMemsetAsync(memory, 0, capacity_, context.stream()), "cudaMemsetAsync");
    memory_ = memory;
    zeroed_ = capacity_;
  }
  used_ += bytes;
  return memory + used_ - bytes;
}

void UnfinishedRecords::enqueue(Context& context) {
  // Reset before the launch: if it fails, no later launch must repeat these records.
  const int count = std::exchange(count_, 0);
  if (count > 0) {
    finish_kernel<<<dim3(kFinishBlocks, static_cast<unsigned>(count)), kFinishThreads, 0,
                    context.stream()>>>(waiting_);
    check_launch("operand_statistics: description");
  }
  if (used_ > 0) {
    check(cudaMemsetAsync(memory_, 0, used_, context.stream()), "cudaMemsetAsync");
  }
  used_ = 0;
}

}  // namespace fp8lab::cuda
