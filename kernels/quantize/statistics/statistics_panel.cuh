// The statistics of a panel of 128 x 256 elements, for one operand or for both orientations of a
// tensor at once, by one block.
//
//   warp w          rows 32 w .. 32 w + 31
//   thread t of it  columns 8 t .. 8 t + 7: a lane of StatisticsOrder
//
//   for two rows at a time, prefetched during the previous two, a thread processes
//     source        converts x to FP64; adds x^2, x^4, |x|; counts exponents, raises the amax of
//                   columns
//     each operand  (statistics_codes.cuh) adds the codes to the hash, decodes y and converts it;
//                   adds y^2, (y - x)^2, y - x
//     zeros and saturated elements are counted only if there is a zero or, for tiles of one row, a
//     magnitude that may exceed the largest value of the tile; other tiles count saturated elements
//     at their last row
//
// Exponents are counted in shared memory, with 64 bins for each lane of a warp, so that lanes never
// conflict in a bank. Zeros are counted in the lowest bin and subtracted at the end. The fast path
// assumes that all elements are finite. If one is not, the sum of |x| or of y - x is infinite or
// NaN; the block then discards its results for that operand and takes the slow path of
// statistics_careful.cuh.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/quantize/statistics/statistics_careful.cuh"
#include "kernels/quantize/statistics/statistics_codes.cuh"

namespace fp8lab::cuda {

/// Returns kOrdinary if no magnitude is zero.
template <class T>
__device__ std::uint32_t nonzero_magnitudes(const Magnitudes<T>& magnitudes) {
  constexpr std::uint32_t kCarries = sizeof(T) == 2 ? 0x7FFF7FFFu : 0x7FFFFFFFu;
  return (magnitudes.least() + kCarries) | (sizeof(T) == 2 ? 0x00800080u : 0x00808080u);
}

/// The statistics of one thread's rows of a panel.
template <class T, class First, class Second>
class PanelThread {
 public:
  using Memory = typename First::Memory;

  __device__ PanelThread(const Lines<T>& source, const PanelOperand<typename First::Bits>& first,
                         const PanelOperand<typename Second::Bits>& second, Memory& memory,
                         const PanelPlace& place, const Lane& lane)
      : lane_(lane),
        source_(source),
        fetched_(&memory.ahead.rows.source[0][0][lane.thread]),
        at_(source.at(lane.row, lane.col), source.stride),
        exponents_(memory.exponents),
        first_(first, memory, place, lane),
        second_(second, memory, place, lane) {}

  __device__ void compare() {
    if (lane_.rows == 0) return;
    const auto source_row = [&](int row) {
      return Lines<T>::load_whole(source_.at(lane_.row + row, lane_.col));
    };
    begin(0);
    fetch();
    wait();
#pragma unroll 1
    for (int group = 0; group < lane_.rows; group += kGroup) {
      first_.enter(group);
      second_.enter(group);
      peaks_ = {};
#pragma unroll 1
      for (int row = group; row < group + kGroup; row += kRowsAtOnce) add_rows(row);
      channels_.raise(peaks_);
      first_.leave(group + kGroup, peaks_, source_row);
      second_.leave(group + kGroup, peaks_, source_row);
    }
  }

  /// Return true if the source and one operand, which were assumed to be finite, are finite.
  __device__ bool first_is_finite() const { return is_finite() && first_.finite(); }
  __device__ bool second_is_finite() const { return is_finite() && second_.finite(); }

  /// Adds the thread's results to the block's. Precondition: all threads of a warp call it.
  __device__ void give(Memory& memory) {
    if (!lane_.is_there) {
      sums_ = {};
      channels_ = {};
      zeros_ = 0;
      exponents_.clear();
      first_.forget();
      second_.forget();
    }
    double sums[kSourceSums + First::kSums + Second::kSums] = {sums_.xx, sums_.xxxx, sums_.x};
    first_.list_sums(sums + kSourceSums);
    second_.list_sums(sums + kSourceSums + First::kSums);
    memory.give_sums(sums);
    if (zeros_ != 0) exponents_.remove(zeros_);
    memory.give(channels_);
    first_.give(memory, 0);
    second_.give(memory, 1);
  }

 private:
  __device__ bool is_finite() const { return sums_.x < statistics_detail::kInfinity; }

  /// Starts the copies of data that is fetched eight rows at a time.
  __device__ void begin(int row) {
    first_.begin(row);
    second_.begin(row);
  }
  __device__ static void wait() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  /// Starts the copies of the next kRowsAtOnce rows.
  __device__ void fetch() {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < FetchedRows<T>::kVectors; ++j) {
        __pipeline_memcpy_async(fetched_ + (i * FetchedRows<T>::kVectors + j) * kPanelThreads,
                                reinterpret_cast<const uint4*>(at_.get()) + j, sizeof(uint4));
      }
      at_.advance();
      first_.fetch(i);
      second_.fetch(i);
    }
  }
  __device__ void take(ElementWords<T> (&x)[kRowsAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      uint4 vectors[FetchedRows<T>::kVectors];
#pragma unroll
      for (int j = 0; j < FetchedRows<T>::kVectors; ++j) {
        vectors[j] = fetched_[(i * FetchedRows<T>::kVectors + j) * kPanelThreads];
      }
      std::memcpy(&x[i], vectors, sizeof x[i]);
    }
  }

  /// Processes kRowsAtOnce rows from `row` on.
  __device__ void add_rows(int row) {
    wait();
    ElementWords<T> x[kRowsAtOnce];
    typename First::Row first[kRowsAtOnce];
    typename Second::Row second[kRowsAtOnce];
    take(x);
    first_.take(row, first);
    second_.take(row, second);
    if (row + kRowsAtOnce < lane_.rows) fetch();
    if (row % kGroup == 0 && row + kGroup < lane_.rows) begin(row + kGroup);
    static_assert(kRowsAtOnce == 2);
    peaks_.raise(magnitudes_of(x[0]), magnitudes_of(x[1]));
    std::uint32_t ordinary = kOrdinary;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) ordinary &= add_row(x[i], first[i], second[i]);
    if (ordinary == kOrdinary) return;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) count_row(row + i, x[i], first[i], second[i]);
  }
  __device__ std::uint32_t add_row(const ElementWords<T>& words, const typename First::Row& first,
                                   const typename Second::Row& second) {
    const Magnitudes<T> magnitudes = magnitudes_of(words);
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) exponents_.count(magnitudes.pair(i / 2));
    double x[kGroup];
    widen(words, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sums_.template add<T>(x[i]);
    return nonzero_magnitudes(magnitudes) & first_.add_row(first, words, x, magnitudes) &
           second_.add_row(second, words, x, magnitudes);
  }
  __device__ void count_row(int row, const ElementWords<T>& words, const typename First::Row& first,
                            const typename Second::Row& second) {
    const Magnitudes<T> magnitudes = magnitudes_of(words);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) zeros_ += magnitudes[i] == 0 ? 1 : 0;
    first_.count_row(row, first, words, magnitudes);
    second_.count_row(row, second, words, magnitudes);
  }

  const Lane& lane_;
  const Lines<T>& source_;
  uint4* fetched_;
  RowPointer<const T> at_;
  ExponentBins exponents_;
  First first_;
  Second second_;
  SourceSums sums_;
  std::uint32_t zeros_ = 0;
  Magnitudes<T> peaks_, channels_;  ///< largest magnitudes of the columns: in eight rows, in all
};

/// Blocks on a multiprocessor: fewer with two operands, which need the registers.
template <class Second>
inline constexpr int kPanelBlocks = std::is_same_v<Second, NoOperand> ? 4 : 3;

/// Runs one block for each panel; panels are ordered by rows, then columns. The operands
/// are TiledRows, StraightCodes, TurnedCodes or SourceHash. Two operands have codes of one
/// kind, or are both the source.
template <class T, class First, class Second>
__global__ void __launch_bounds__(kPanelThreads, kPanelBlocks<Second>)
    panel_kernel(const __grid_constant__ Lines<T> source,
                 const __grid_constant__ PanelOperand<typename First::Bits> first,
                 const __grid_constant__ PanelOperand<typename Second::Bits> second,
                 unsigned panels_across) {
  constexpr bool kHasSecond = !std::is_same_v<Second, NoOperand>;
  using Memory = typename First::Memory;
  __shared__ Memory shared;
  Memory& memory = held_shared<Memory>(&shared);
  fill_values<First::kKind>(first.compared.decoder.format, memory.values);
  memory.clear();
  __syncthreads();
  const PanelPlace place(blockIdx.x, panels_across);
  const Lane lane(place, first.compared);
  PanelThread<T, First, Second> part(source, first, second, memory, place, lane);
  part.compare();
  const bool first_is_finite = __syncthreads_or(!part.first_is_finite()) == 0;
  const bool second_is_finite = kHasSecond && __syncthreads_or(!part.second_is_finite()) == 0;
  if (first_is_finite || second_is_finite) {
    part.give(memory);
    __syncthreads();
    const std::int64_t cols = first.compared.cols;
    if (first_is_finite && second_is_finite) {
      memory.store(0, First::kIsSource, {&first.results, &second.results}, place, cols);
    } else if (first_is_finite) {
      memory.store(0, First::kIsSource, {&first.results}, place, cols);
    } else {
      memory.store(1, First::kIsSource, {&second.results}, place, cols);
    }
  }
  if (!first_is_finite) compare_with_care<T, First::kWithCare>(source, first, place, memory);
  if constexpr (kHasSecond) {
    if (!second_is_finite) compare_with_care<T, Second::kWithCare>(source, second, place, memory);
  }
}

}  // namespace fp8lab::cuda
