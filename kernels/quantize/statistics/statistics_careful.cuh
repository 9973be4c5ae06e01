// The slow path of panel statistics, element by element, for any operand: elements may be infinite
// or NaN, groups of eight may be cut off or unaligned, tiles may have any shape, and a clamp may be
// compensated. It takes one operand at a time and is slower than statistics_panel.cuh.
//
// Column-major codes are transposed in 8x8 blocks through shared memory. Row-major codes whose hash
// runs along columns are transposed for the hash alone.
#pragma once

#include <cstdint>

#include "emulation/numerics/outliers.hpp"
#include "kernels/quantize/statistics/statistics_block.cuh"

namespace fp8lab::cuda {

/// The statistics of one thread's rows of a panel.
template <class T, Stored kStored>
class CarefulThread {
 public:
  using Bits = StoredBits<kStored>;

  __device__ CarefulThread(const Lines<T>& source, const PanelOperand<Bits>& operand,
                           PanelMemory<T, Bits>& memory, const PanelPlace& place)
      : source_(source),
        codes_(operand.codes),
        compared_(operand.compared),
        nonzero_(operand.results.nonzero),
        memory_(memory),
        exponents_(memory.exponents),
        first_(place.row),
        col_(place.col),
        rows_(static_cast<int>(
            min(compared_.rows - first_, std::int64_t{StatisticsOrder::kLaneRows}))),
        count_(static_cast<int>(min(compared_.cols - col_, std::int64_t{kGroup}))) {}

  __device__ void compare() {
    if (count_ <= 0 || rows_ <= 0) return;
    LaneTiles<T, LaneScales<kGroup>, false> tiles(
        compared_, nonzero_, TilePlace(compared_.grid, first_, col_), first_, col_, rows_);
    const bool turned = compared_.turned, transpose = compared_.transpose;
    const auto source_row = [&](int row) {
      return source_.load(source_.at(first_ + row, col_), count_);
    };
    std::int64_t hash_index = first_ * compared_.hash_words + col_ / kTurned<Bits>;
#pragma unroll 1
    for (int row = 0; row < rows_; ++row) {
      if ((turned || transpose) && row % kGroup == 0) turn_codes(row);
      const ElementWords<T> x = source_row(row);
      const ElementWords<Bits> codes =
          turned ? turned_codes(row % kGroup) : codes_.load(codes_.at(first_ + row, col_), count_);
      if (!transpose) {
        add_hash(codes, hash_index);
        hash_index += compared_.hash_words;
      }
      const Magnitudes<T> magnitudes = magnitudes_of(x);
      float y[kGroup];
      decode(row, codes, tiles, y);
      add_row(x, y, magnitudes);
      saturated_ += tiles.add_rows(row + 1, magnitudes, source_row);
    }
  }

  /// Adds the thread's results to the block's. Precondition: all threads of a warp call it.
  __device__ void give() {
    double sums[] = {source_sums_.xx, source_sums_.xxxx, source_sums_.x,
                     error_sums_.yy,  error_sums_.ee,    error_sums_.e};
    memory_.give_sums(sums);
    auto& found = memory_.operands[0];
    memory_.give_count(nonfinite_, found.nonfinite);
    memory_.give_count(underflow_, found.underflow);
    memory_.give_count(saturated_, found.saturated);
    if (zeros_ != 0) exponents_.remove(zeros_);
    memory_.give_hash(hash_, 0);
    memory_.give(channels_);
  }

 private:
  /// Transposes the codes of rows `row` to `row` + 7 for turned_codes, and hashes
  /// those of a transposed operand.
  __device__ void turn_codes(int row) {
    const int rows = min(rows_ - row, kGroup);
    const std::int64_t word = (first_ + row) / kTurned<Bits>;
#pragma unroll
    for (int part = 0; part < static_cast<int>(sizeof(Bits)); ++part) {
      const int first = part * kTurned<Bits>;
      ElementWords<Bits> lines[kTurned<Bits>];
      std::uint64_t turned[kGroup];
      if (compared_.turned) {
#pragma unroll
        for (int i = 0; i < kTurned<Bits>; ++i) {
          lines[i] =
              codes_.load(codes_.at(col_ + first + i, first_ + row), first + i < count_ ? rows : 0);
        }
        turn<Bits>(lines, turned);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) memory_.turned[i][part][threadIdx.x] = turned[i];
        if (!compared_.transpose) continue;
#pragma unroll
        for (int i = 0; i < kTurned<Bits>; ++i) {
          if (first + i >= count_) continue;
          const std::int64_t index = (col_ + first + i) * compared_.hash_words + word;
#pragma unroll
          for (int w = 0; w < ElementWords<Bits>::kHashWords; ++w) {
            if (w * kTurned<Bits> >= rows) continue;
            hash_ += hash_of_codes(index + w, lines[i].hash_word(w));
          }
        }
      } else if (first < rows) {
#pragma unroll
        for (int i = 0; i < kTurned<Bits>; ++i) {
          lines[i] =
              codes_.load(codes_.at(first_ + row + first + i, col_), first + i < rows ? count_ : 0);
        }
        turn<Bits>(lines, turned);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          if (i >= count_) continue;
          hash_ += hash_of_codes((col_ + i) * compared_.hash_words + word + part, turned[i]);
        }
      }
    }
  }

  __device__ ElementWords<Bits> turned_codes(int row) const {
    ElementWords<Bits> result;
#pragma unroll
    for (int i = 0; i < ElementWords<Bits>::kHashWords; ++i) {
      const std::uint64_t word = memory_.turned[row][i][threadIdx.x];
      result.words[2 * i] = static_cast<std::uint32_t>(word);
      result.words[2 * i + 1] = static_cast<std::uint32_t>(word >> 32);
    }
    return result;
  }

  __device__ void add_hash(const ElementWords<Bits>& codes, std::int64_t index) {
#pragma unroll
    for (int i = 0; i < ElementWords<Bits>::kHashWords; ++i) {
      if (i * kTurned<Bits> < count_) hash_ += hash_of_codes(index + i, codes.hash_word(i));
    }
  }

  template <class Tiles>
  __device__ void decode(int row, const ElementWords<Bits>& codes, const Tiles& tiles,
                         float (&y)[kGroup]) const {
    if constexpr (kStored == Stored::codebooks) {
#pragma unroll 1
      for (int i = 0; i < count_; ++i) y[i] = compared_.value(first_ + row, col_ + i);
    } else if constexpr (kStored == Stored::bf16 || kStored == Stored::f32) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) y[i] = element_of(codes, i);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const std::uint32_t code = codes.words[i / 4] >> 8 * (i % 4) & 0xFFu;
        y[i] = tiles.scale(i) * memory_.values[code];
      }
    }
  }

  __device__ void add_row(const ElementWords<T>& source, float (&y)[kGroup],
                          Magnitudes<T> magnitudes) {
    constexpr float kLargest = numerics::bits_float(numerics::kF32MaxFinite);
    float x[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = element_of(source, i);
    if (compared_.compensation != nullptr) {
      const numerics::ClampBounds bounds{compared_.compensation[0], compared_.compensation[1]};
#pragma unroll
      for (int i = 0; i < kGroup; ++i) y[i] += numerics::clamp_residual(bounds, x[i]);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count_) {
        y[i] = 0.0f;
      } else if (!(fabsf(x[i]) <= kLargest && fabsf(y[i]) <= kLargest)) {
        ++nonfinite_;
        x[i] = y[i] = 0.0f;
        magnitudes.clear(i);
      }
    }
    channels_.raise(magnitudes);
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) exponents_.count(magnitudes.pair(i / 2));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (x[i] == 0.0f) {
        ++zeros_;
      } else if (y[i] == 0.0f) {
        ++underflow_;
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const double x_wide = x[i], y_wide = y[i];
      source_sums_.template add<T>(x_wide);
      error_sums_.add(x_wide, y_wide);
    }
  }

  const Lines<T>& source_;
  const Lines<Bits>& codes_;
  const Compared& compared_;
  std::uint8_t* nonzero_;
  PanelMemory<T, Bits>& memory_;
  ExponentBins exponents_;
  std::int64_t first_, col_;  ///< row and column of the first element
  int rows_, count_;          ///< not positive: there are none

  SourceSums source_sums_;
  ErrorSums error_sums_;
  std::uint32_t nonfinite_ = 0, underflow_ = 0, saturated_ = 0, zeros_ = 0;
  std::uint64_t hash_ = 0;
  Magnitudes<T> channels_;  ///< largest finite magnitudes of the columns
};

/// Compares the panel of a block. Not inlined, so that the fast path keeps its registers.
template <class T, Stored kStored>
__device__ __noinline__ void compare_with_care(const Lines<T>& source,
                                               const PanelOperand<StoredBits<kStored>>& operand,
                                               const PanelPlace& place,
                                               PanelMemory<T, StoredBits<kStored>>& memory) {
  __syncthreads();
  fill_values<kStored>(operand.compared.decoder.format, memory.values);
  memory.clear();
  __syncthreads();
  CarefulThread<T, kStored> part(source, operand, memory, place);
  part.compare();
  part.give();
  __syncthreads();
  memory.store(0, false, {&operand.results}, place, operand.compared.cols);
}

/// Runs one block for each panel; panels are ordered by rows, then columns.
template <class T, Stored kStored>
__global__ void __launch_bounds__(kPanelThreads)
    careful_kernel(const __grid_constant__ Lines<T> source,
                   const __grid_constant__ PanelOperand<StoredBits<kStored>> operand,
                   unsigned panels_across) {
  __shared__ PanelMemory<T, StoredBits<kStored>> memory;
  compare_with_care<T, kStored>(source, operand, PanelPlace(blockIdx.x, panels_across), memory);
}

}  // namespace fp8lab::cuda
