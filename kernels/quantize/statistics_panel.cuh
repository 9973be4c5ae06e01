// What a panel of 128 x 256 elements adds to the statistics of an operand, by one block.
//
//   warp w          rows 32 w .. 32 w + 31
//   thread t of it  columns 8 t .. 8 t + 7: a lane of StatisticsOrder
//
//   for each of its rows, a thread:
//     loads 8 elements x of the source and 8 codes, the next row's ahead; codes that lie the other
//       way round are first turned 8 x 8 at a time (operand_lines.cuh) and wait in shared memory
//     adds the codes to the hash, decodes y, adds to the sums, counts, raises the amax of columns
//     marks its tiles that are not zero; if the largest magnitude is saturated, counts which are
//
// Exponents are counted in shared memory, 64 bins for each lane of a warp, so that the lanes never
// meet in a bank; zeros go to the lowest bin and are taken from it at the end. All elements are
// taken as finite. The errors y - x would make a sum infinite or NaN if they were not; then the
// block forgets what it found and compares once more with care. Sources and codes that do not lie
// in whole groups of eight, and what a clamp compensates, are compared with care from the start.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/describe_statistics.hpp"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/operand_decoder.cuh"
#include "kernels/quantize/operand_lines.cuh"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {

using Count = unsigned long long;  // what atomicAdd takes

/// What has no order. Zeros before: scales are kept as keys that only grow.
struct Tally {
  Count nonfinite, underflow, saturated, zero_tiles, hash;
  Count exponents[kExponentBins];
  std::uint32_t largest_scale, smallest_scale;  ///< keys; 0: none seen
  std::uint32_t finished;                       ///< blocks of the last kernel
};

inline constexpr int kStatisticsSums = 7;
static_assert(sizeof(StatisticsTotals) == kStatisticsSums * sizeof(double));
inline constexpr int kPanelWarps = StatisticsOrder::kPanelRows / StatisticsOrder::kLaneRows;
inline constexpr int kPanelThreads = kPanelWarps * kWarpSize;
static_assert(StatisticsOrder::kPanelCols == kWarpSize * kGroup);
static_assert(StatisticsOrder::kLaneCols == kGroup && StatisticsOrder::kLaneRows % kGroup == 0);

/// How y is stored.
enum class Stored {
  e4m3,       ///< codes of e4m3fn, by instruction
  codes,      ///< others that a table decodes
  codebooks,  ///< codes that mean something else in each tile
  bf16,
  f32,
};
template <Stored kStored>
using StoredBits =
    std::conditional_t<kStored == Stored::bf16, std::uint16_t,
                       std::conditional_t<kStored == Stored::f32, float, std::uint8_t>>;

/// The operand as the kernels read it, in the orientation of the source.
struct Compared {
  std::int64_t rows, cols;  ///< of the source
  bool transpose;           ///< the operand is (cols, rows)
  bool turned;              ///< its codes lie in columns of the source
  std::int64_t hash_words;  ///< of one of its vectors
  TileGrid grid;
  Decoder decoder;
  double qmax;  ///< that tiles scale; infinite where nothing saturates, in expanded tiles
  const float* compensation;  ///< bounds of a compensated clamp; nullptr: none

  __device__ float value(std::int64_t row, std::int64_t col) const {
    return transpose ? decoder(col, row) : decoder(row, col);
  }
  __device__ float scale(std::int64_t tile_row, std::int64_t tile_col) const {
    if (decoder.scales == nullptr) return 1.0f;
    return __ldg(decoder.scales + (transpose ? tile_col * decoder.scale_stride + tile_row
                                             : tile_row * decoder.scale_stride + tile_col));
  }
};

/// Where the blocks of a source leave what they find; `channel_amax` and `nonzero` hold zeros
/// before.
struct PanelResults {
  StatisticsTotals* totals;     ///< (rows of panels, panels across)
  std::uint32_t* channel_amax;  ///< FP32 bits, by column
  std::uint8_t* nonzero;        ///< 1: a tile that is not all zeros
  Tally* tally;
};

/// Shared memory of a block.
template <class Bits>
struct PanelMemory {
  std::uint32_t exponents[kExponentBins][kWarpSize];
  std::uint32_t channel_amax[StatisticsOrder::kPanelCols];
  std::uint32_t nonfinite, underflow, saturated;
  Count hash;
  double sums[kPanelWarps][kStatisticsSums];
  float values[256];  ///< of the codes
  /// [row][group of columns][thread]: eight rows of each thread's codes.
  std::uint64_t codes[kGroup][sizeof(Bits)][kPanelThreads];
};

/// Magnitudes of eight elements, bf16 in pairs.
template <class T>
struct Magnitudes {
  static constexpr int kWords = ElementWords<T>::kWords;
  std::uint32_t words[kWords] = {};

  __device__ static std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    if constexpr (sizeof(T) == 2) return __vmaxu2(a, b);
    return max(a, b);
  }
  __device__ void raise(const Magnitudes& other) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = larger(words[i], other.words[i]);
  }
  /// FP32 bits.
  __device__ std::uint32_t operator[](int i) const {
    if constexpr (sizeof(T) == 2) {
      return i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u;
    } else {
      return words[i];
    }
  }
  __device__ void clear(int i) {
    if constexpr (sizeof(T) == 2) {
      words[i / 2] &= i % 2 == 0 ? 0xFFFF0000u : 0xFFFFu;
    } else {
      words[i] = 0;
    }
  }
  __device__ std::uint32_t largest() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all = larger(all, words[i]);
    if constexpr (sizeof(T) == 2) all = max(all << 16, all & 0xFFFF0000u);
    return all;
  }
  __device__ bool any_zero() const {
    std::uint32_t least = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) {
      least = sizeof(T) == 2 ? __vminu2(least, words[i]) : min(least, words[i]);
    }
    if constexpr (sizeof(T) == 2) return (least & 0xFFFFu) == 0 || least <= 0xFFFFu;
    return least == 0;
  }
  /// The upper halves of elements 2 i and 2 i + 1, as bf16.
  __device__ std::uint32_t pair(int i) const {
    if constexpr (sizeof(T) == 2) return words[i];
    return __byte_perm(words[2 * i], words[2 * i + 1], 0x7632);
  }
};

template <class T>
__device__ Magnitudes<T> magnitudes_of(const ElementWords<T>& elements) {
  Magnitudes<T> result;
#pragma unroll
  for (int i = 0; i < Magnitudes<T>::kWords; ++i) {
    result.words[i] = elements.words[i] & (sizeof(T) == 2 ? 0x7FFF7FFFu : 0x7FFFFFFFu);
  }
  return result;
}

/// Element i, which is bf16 or f32.
template <class T>
__device__ float element_of(const ElementWords<T>& elements, int i) {
  if constexpr (sizeof(T) == 2) {
    const std::uint32_t pair = elements.words[i / 2];
    return numerics::bits_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
  } else {
    return numerics::bits_float(elements.words[i]);
  }
}

/// The sums of one lane, in the order of StatisticsTotals.
struct LaneSums {
  double xx = 0.0, xxxx = 0.0, xy = 0.0, yy = 0.0, ee = 0.0, e = 0.0, x = 0.0;

  /// T is the type of x.
  template <class T>
  __device__ void add(float x_value, float y_value) {
    const double x_wide = x_value, y_wide = y_value;
    const double square = x_wide * x_wide, error = y_wide - x_wide;
    xx += square;
    // Products of FP32 values are exact, of bf16 values those of four: the sums have one rounding,
    // fused or not.
    xxxx = sizeof(T) == 2 ? __fma_rn(square, square, xxxx) : xxxx + square * square;
    xy = __fma_rn(x_wide, y_wide, xy);
    yy = __fma_rn(y_wide, y_wide, yy);
    ee += error * error;
    e += error;
    x += fabs(x_wide);
  }
};

/// Where a lane of a warp counts exponents.
class ExponentBins {
 public:
  __device__ explicit ExponentBins(std::uint32_t (&bins)[kExponentBins][kWarpSize])
      : bins_(reinterpret_cast<std::byte*>(bins)),
        lane_(static_cast<unsigned>(lane_id()) * 0x00040004u) {}

  /// The exponents of two magnitudes in bf16.
  __device__ void count(std::uint32_t pair) const {
    // An exponent lies 7 bits up, which is the distance of two bins in bytes; the lane goes below.
    std::uint32_t places = (pair & 0x7F807F80u) | lane_;
    places = __vminu2(__vmaxu2(places, kLowest * 0x10001u + lane_), kHighest * 0x10001u + lane_);
    atomicAdd(at(places & 0xFFFFu), 1u);
    atomicAdd(at(places >> 16), 1u);
  }
  /// Takes zeros from the lowest bin.
  __device__ void remove(std::uint32_t zeros) const {
    atomicAdd(at(kLowest + (lane_ & 0xFFFFu)), 0u - zeros);
  }

 private:
  static_assert(kWarpSize * sizeof(std::uint32_t) == 1u << 7);
  static constexpr unsigned kLowest = (127 + kLowestBinExponent) << 7;
  static constexpr unsigned kHighest = kLowest + ((kExponentBins - 1) << 7);

  __device__ std::uint32_t* at(std::uint32_t place) const {
    return reinterpret_cast<std::uint32_t*>(bins_ + place - kLowest);
  }

  std::byte* bins_;
  std::uint32_t lane_;  ///< its offset in bytes, twice
};

/// Counts the magnitudes of a group that are saturated.
template <class T, class Limit>
__device__ std::uint32_t count_saturated(const Magnitudes<T>& magnitudes, const Limit& limit) {
  std::uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (magnitudes[i] <= numerics::kF32Infinity && magnitudes[i] > limit(i)) ++count;
  }
  return count;
}

/// The value, in a register: the compiler would rather compute it anew for each row.
__device__ inline int kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// What the trackers of tiles have in common: the rows of the tiles in which a thread is.
class TileRows {
 protected:
  __device__ TileRows(const Compared& compared, std::uint8_t* nonzero, std::int64_t row,
                      std::int64_t col, int rows)
      : compared_(compared), rows_(rows) {
    const TileGrid& grid = compared.grid;
    tile_row_ = row / grid.height;
    tile_col_ = col / grid.width;
    end_ = static_cast<int>(min((tile_row_ + 1) * grid.height - row, std::int64_t{rows}));
    height_ = kept(static_cast<int>(min(grid.height, std::int64_t{StatisticsOrder::kLaneRows})));
    nonzero_ = nonzero + tile_row_ * grid.wide + tile_col_;
  }

  __device__ std::uint32_t limit(float scale) const {
    return numerics::float_bits(saturation_limit(compared_.qmax, scale));
  }
  /// To the tiles below; false: there are no more rows.
  __device__ bool descend() {
    if (end_ == rows_) return false;
    ++tile_row_;
    end_ = min(end_ + height_, rows_);
    nonzero_ += compared_.grid.wide;
    return true;
  }

  const Compared& compared_;
  std::int64_t tile_row_, tile_col_;  ///< of the first column
  std::uint8_t* nonzero_;             ///< of that tile
  int rows_, end_, height_;           ///< rows of the thread, before the next tiles, of a tile
};

/// The tiles of a thread whose eight columns always lie in one.
template <class T>
class WideTiles : TileRows {
 public:
  __device__ WideTiles(const Compared& compared, std::uint8_t* nonzero, std::int64_t row,
                       std::int64_t col, int rows)
      : TileRows(compared, nonzero, row, col, rows) {
    next_ = compared.decoder.scales;
    step_ = compared.transpose ? 1 : compared.decoder.scale_stride;
    if (next_ != nullptr) {
      next_ +=
          tile_row_ * step_ + tile_col_ * (compared.transpose ? compared.decoder.scale_stride : 1);
      next_scale_ = __ldg(next_);
    }
    enter();
  }

  __device__ float scale(int) const { return scale_; }

  /// Takes a row; returns how many of it are saturated.
  template <class Source>
  __device__ std::uint32_t add_row(int row, const Magnitudes<T>& magnitudes, const Source&) {
    const std::uint32_t largest = magnitudes.largest();
    if (largest != 0 && !marked_) {
      *nonzero_ = 1;
      marked_ = true;
    }
    std::uint32_t count = 0;
    if (largest > limit_) {
      count = count_saturated(magnitudes, [&](int) { return limit_; });
    }
    if (row + 1 == end_ && descend()) enter();
    return count;
  }

 private:
  __device__ void enter() {
    scale_ = next_scale_;
    limit_ = limit(scale_);
    marked_ = false;
    if (next_ != nullptr && end_ < rows_) next_scale_ = __ldg(next_ += step_);
  }

  const float* next_;  ///< the scale of the tile below; nullptr: there are none
  std::int64_t step_;
  float scale_, next_scale_ = 1.0f;
  std::uint32_t limit_;
  bool marked_;
};

/// The tiles of a thread with any number of them side by side.
template <class T>
class NarrowTiles : TileRows {
 public:
  __device__ NarrowTiles(const Compared& compared, std::uint8_t* nonzero, std::int64_t row,
                         std::int64_t col, int rows)
      : TileRows(compared, nonzero, row, col, rows) {
    const std::int64_t width = compared.grid.width;
    count_ = static_cast<int>(min(compared.cols - col, std::int64_t{kGroup}));
    width_ = static_cast<int>(min(width, std::int64_t{kGroup}));
    left_ = static_cast<int>(min((tile_col_ + 1) * width - col, std::int64_t{kGroup}));
    enter();
  }

  __device__ float scale(int i) const { return scales_[i]; }

  /// Takes a row; returns how many of it and of rows before it in its tiles are saturated, once.
  template <class Source>
  __device__ std::uint32_t add_row(int row, const Magnitudes<T>& magnitudes, const Source& source) {
    peaks_.raise(magnitudes);
    if (row + 1 != end_) return 0;
    std::uint32_t limits[kGroup] = {}, count = 0;
    bool saturated = false;
    for_each_column([&](int i, int tile) {
      if (peaks_[i] != 0) nonzero_[tile] = 1;
      limits[i] = limit(scales_[i]);
      saturated = saturated || peaks_[i] > limits[i];
    });
    if (saturated) {
#pragma unroll 1
      for (int again = begin_; again <= row; ++again) {
        count += count_saturated(magnitudes_of(source(again)), [&](int i) { return limits[i]; });
      }
    }
    begin_ = row + 1;
    peaks_ = {};
    if (descend()) enter();
    return count;
  }

 private:
  /// Calls take(i, tile) for the columns, with tiles counted from the first.
  template <class Take>
  __device__ void for_each_column(const Take& take) const {
    int tile = 0, left = left_;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < count_) take(i, tile);
      if (--left == 0) {
        ++tile;
        left = width_;
      }
    }
  }
  __device__ void enter() {
    for_each_column(
        [&](int i, int tile) { scales_[i] = compared_.scale(tile_row_, tile_col_ + tile); });
  }

  int begin_ = 0;             ///< the first row of these tiles
  int count_, width_, left_;  ///< columns; of a tile and of the first one, 8 at most
  float scales_[kGroup] = {};
  Magnitudes<T> peaks_;  ///< largest ones of the columns in these tiles
};

/// Whether source and codes lie in groups of eight that can be loaded at once, and nothing is
/// compensated.
template <class T, class Bits>
__device__ bool is_plain(const Lines<T>& source, const Lines<Bits>& codes,
                         const Compared& compared) {
  return source.wide && codes.wide && compared.rows % kGroup == 0 && compared.cols % kGroup == 0 &&
         compared.compensation == nullptr;
}

/// What one thread finds in its rows of a panel. Careful: elements may be infinite or NaN, and the
/// operand need not be plain.
template <class T, Stored kStored, bool kWide, bool kCareful>
class PanelThread {
 public:
  using Bits = StoredBits<kStored>;

  __device__ PanelThread(const Lines<T>& source, const Lines<Bits>& codes, const Compared& compared,
                         const PanelResults& results, PanelMemory<Bits>& memory, std::int64_t row,
                         std::int64_t col)
      : source_(source),
        codes_(codes),
        compared_(compared),
        nonzero_(results.nonzero),
        memory_(memory),
        exponents_(memory.exponents),
        first_(row),
        col_(col),
        rows_(kept(
            static_cast<int>(min(compared.rows - row, std::int64_t{StatisticsOrder::kLaneRows})))),
        count_(kept(static_cast<int>(min(compared.cols - col, std::int64_t{kGroup})))) {}

  __device__ void compare() {
    if (count_ <= 0 || rows_ <= 0) return;
    std::conditional_t<kWide, WideTiles<T>, NarrowTiles<T>> tiles(compared_, nonzero_, first_, col_,
                                                                  rows_);
    const bool turned = compared_.turned, transpose = compared_.transpose;
    const T* x_at = source_.at(first_, col_);
    const Bits* codes_at = codes_.at(first_, col_);
    ElementWords<T> next_x = load(source_, x_at, count_);
    ElementWords<Bits> next_codes;
    if (!turned) next_codes = load(codes_, codes_at, count_);
    std::int64_t hash_index = first_ * compared_.hash_words + col_ / kTurned<Bits>;
#pragma unroll 1
    for (int row = 0; row < rows_; ++row) {
      if ((turned || transpose) && row % kGroup == 0) turn_codes(row);
      const ElementWords<T> x = next_x;
      const ElementWords<Bits> codes = turned ? turned_codes(row % kGroup) : next_codes;
      if (row + 1 < rows_) {
        next_x = load(source_, x_at += source_.stride, count_);
        if (!turned) next_codes = load(codes_, codes_at += codes_.stride, count_);
      }
      if (!transpose) {
        add_hash(codes, hash_index);
        hash_index += compared_.hash_words;
      }
      const Magnitudes<T> magnitudes = magnitudes_of(x);
      float y[kGroup];
      decode(row, codes, tiles, y);
      add_row(x, y, magnitudes);
      saturated_ += tiles.add_row(row, magnitudes, [&](int again) {
        return load(source_, source_.at(first_ + again, col_), count_);
      });
    }
  }

  /// Whether all that was taken as finite is.
  __device__ bool finite() const { return fabs(sums_.e) < statistics_detail::kInfinity; }

  /// Adds to what the block has found. All threads of a warp must call it.
  __device__ void give() {
    double* sums = memory_.sums[warp_id()];
    const auto sum = [&](int which, double LaneSums::*member) {
      double all = sums_.*member;
#pragma unroll
      for (int span = 1; span < kWarpSize; span *= 2) {
        all += __shfl_xor_sync(kAllLanes, all, span);
      }
      if (lane_id() == 0) sums[which] = all;
    };
    sum(0, &LaneSums::xx);
    sum(1, &LaneSums::xxxx);
    sum(2, &LaneSums::xy);
    sum(3, &LaneSums::yy);
    sum(4, &LaneSums::ee);
    sum(5, &LaneSums::e);
    sum(6, &LaneSums::x);
    const auto count = [](std::uint32_t mine, std::uint32_t& total) {
      const std::uint32_t all = __reduce_add_sync(kAllLanes, mine);
      if (lane_id() == 0 && all != 0) atomicAdd(&total, all);
    };
    if constexpr (kCareful) count(nonfinite_, memory_.nonfinite);
    count(underflow_, memory_.underflow);
    count(saturated_, memory_.saturated);
    if (zeros_ != 0) exponents_.remove(zeros_);
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      hash_ += __shfl_xor_sync(kAllLanes, hash_, span);
    }
    if (lane_id() == 0) atomicAdd(&memory_.hash, static_cast<Count>(hash_));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (channels_[i] != 0) atomicMax(&memory_.channel_amax[lane_id() * kGroup + i], channels_[i]);
    }
  }

 private:
  template <class Element>
  __device__ static ElementWords<Element> load(const Lines<Element>& lines, const Element* from,
                                               int count) {
    if constexpr (kCareful) return lines.load(from, count);
    return Lines<Element>::load_whole(from);
  }
  /// Whether element `i` of a group of `count` is there.
  __device__ static bool has(int i, int count) { return !kCareful || i < count; }

  /// Turns codes of rows `row` to `row` + 7 for turned_codes, hashes those of a transpose.
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
          lines[i] = load(codes_, codes_.at(col_ + first + i, first_ + row),
                          first + i < count_ ? rows : 0);
        }
        turn<Bits>(lines, turned);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) memory_.codes[i][part][threadIdx.x] = turned[i];
        if (!compared_.transpose) continue;
#pragma unroll
        for (int i = 0; i < kTurned<Bits>; ++i) {
          if (!has(first + i, count_)) continue;
          const std::int64_t index = (col_ + first + i) * compared_.hash_words + word;
#pragma unroll
          for (int w = 0; w < ElementWords<Bits>::kHashWords; ++w) {
            if (!has(w * kTurned<Bits>, rows)) continue;
            hash_ += hash_of_codes(index + w, lines[i].hash_word(w));
          }
        }
      } else if (has(first, rows)) {
#pragma unroll
        for (int i = 0; i < kTurned<Bits>; ++i) {
          lines[i] = load(codes_, codes_.at(first_ + row + first + i, col_),
                          first + i < rows ? count_ : 0);
        }
        turn<Bits>(lines, turned);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          if (!has(i, count_)) continue;
          hash_ += hash_of_codes((col_ + i) * compared_.hash_words + word + part, turned[i]);
        }
      }
    }
  }

  __device__ ElementWords<Bits> turned_codes(int row) const {
    ElementWords<Bits> result;
#pragma unroll
    for (int i = 0; i < ElementWords<Bits>::kHashWords; ++i) {
      const std::uint64_t word = memory_.codes[row][i][threadIdx.x];
      result.words[2 * i] = static_cast<std::uint32_t>(word);
      result.words[2 * i + 1] = static_cast<std::uint32_t>(word >> 32);
    }
    return result;
  }

  __device__ void add_hash(const ElementWords<Bits>& codes, std::int64_t index) {
#pragma unroll
    for (int i = 0; i < ElementWords<Bits>::kHashWords; ++i) {
      if (has(i * kTurned<Bits>, count_)) hash_ += hash_of_codes(index + i, codes.hash_word(i));
    }
  }

  template <class Tiles>
  __device__ void decode(int row, const ElementWords<Bits>& codes, const Tiles& tiles,
                         float (&y)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (kStored == Stored::e4m3) {
        if (i % 2 != 0) continue;
        const auto pair = static_cast<__nv_fp8x2_storage_t>(codes.words[i / 4] >> 8 * (i % 4));
        const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
        y[i] = tiles.scale(i) * values.x;
        y[i + 1] = tiles.scale(i + 1) * values.y;
      } else if constexpr (kStored == Stored::codes) {
        const std::uint32_t code = codes.words[i / 4] >> 8 * (i % 4) & 0xFFu;
        y[i] = tiles.scale(i) * memory_.values[code];
      } else if constexpr (kStored == Stored::codebooks) {
        y[i] = has(i, count_) ? compared_.value(first_ + row, col_ + i) : 0.0f;
      } else {
        y[i] = element_of(codes, i);
      }
    }
  }

  __device__ void add_row(const ElementWords<T>& source, float (&y)[kGroup],
                          Magnitudes<T> magnitudes) {
    float x[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = element_of(source, i);
    if constexpr (kCareful) {
      if (compared_.compensation != nullptr) {
        const numerics::ClampBounds bounds{compared_.compensation[0], compared_.compensation[1]};
#pragma unroll
        for (int i = 0; i < kGroup; ++i) y[i] += numerics::clamp_residual(bounds, x[i]);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) y[i] = i < count_ ? y[i] : 0.0f;
      constexpr float kLargest = numerics::bits_float(numerics::kF32MaxFinite);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (fabsf(x[i]) <= kLargest && fabsf(y[i]) <= kLargest) continue;
        ++nonfinite_;
        x[i] = y[i] = 0.0f;
        magnitudes.clear(i);
      }
    }
    channels_.raise(magnitudes);
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) exponents_.count(magnitudes.pair(i / 2));
    float least = fabsf(y[0]);
#pragma unroll
    for (int i = 1; i < kGroup; ++i) least = fminf(least, fabsf(y[i]));
    if (least == 0.0f || magnitudes.any_zero()) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (x[i] == 0.0f) {
          ++zeros_;
        } else if (y[i] == 0.0f) {
          ++underflow_;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sums_.add<T>(x[i], y[i]);
  }

  const Lines<T>& source_;
  const Lines<Bits>& codes_;
  const Compared& compared_;
  std::uint8_t* nonzero_;
  PanelMemory<Bits>& memory_;
  ExponentBins exponents_;
  std::int64_t first_, col_;  ///< row and column of the first element
  int rows_, count_;          ///< not above 0: there are none

  LaneSums sums_;
  std::uint32_t nonfinite_ = 0, underflow_ = 0, saturated_ = 0, zeros_ = 0;
  std::uint64_t hash_ = 0;
  Magnitudes<T> channels_;  ///< largest finite ones of the columns
};

template <class Bits>
__device__ void clear(PanelMemory<Bits>& memory) {
  auto* bins = &memory.exponents[0][0];
  for (int i = threadIdx.x; i < kExponentBins * kWarpSize; i += kPanelThreads) bins[i] = 0;
  for (int i = threadIdx.x; i < StatisticsOrder::kPanelCols; i += kPanelThreads) {
    memory.channel_amax[i] = 0;
  }
  if (threadIdx.x != 0) return;
  memory.nonfinite = memory.underflow = memory.saturated = 0;
  memory.hash = 0;
}

/// All threads of the block, after a barrier.
template <class Bits>
__device__ void store(const PanelMemory<Bits>& memory, const PanelResults& results,
                      std::int64_t col, std::int64_t cols) {
  static_assert(kPanelWarps == 4 && kPanelThreads == 2 * kExponentBins);
  const int thread = threadIdx.x;
  if (thread < kStatisticsSums) {
    reinterpret_cast<double*>(results.totals + blockIdx.x)[thread] =
        (memory.sums[0][thread] + memory.sums[1][thread]) +
        (memory.sums[2][thread] + memory.sums[3][thread]);
  }
  // Two threads a bin, whose halves of a warp's lanes begin at different banks.
  std::uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kWarpSize / 2; ++i) {
    count += memory.exponents[thread / 2]
                             [thread % 2 * (kWarpSize / 2) + (i + thread / 2) % (kWarpSize / 2)];
  }
  count += __shfl_xor_sync(kAllLanes, count, 1);
  Tally& tally = *results.tally;
  if (thread % 2 == 0 && count != 0) atomicAdd(&tally.exponents[thread / 2], Count{count});
  for (int i = thread; i < StatisticsOrder::kPanelCols && col + i < cols; i += kPanelThreads) {
    const std::uint32_t amax = memory.channel_amax[i];
    if (amax != 0) atomicMax(&results.channel_amax[col + i], amax);
  }
  if (thread != 0) return;
  if (memory.nonfinite != 0) atomicAdd(&tally.nonfinite, Count{memory.nonfinite});
  if (memory.underflow != 0) atomicAdd(&tally.underflow, Count{memory.underflow});
  if (memory.saturated != 0) atomicAdd(&tally.saturated, Count{memory.saturated});
  atomicAdd(&tally.hash, memory.hash);
}

/// Where a thread begins.
struct PanelPlace {
  std::int64_t first_col, row, col;

  __device__ PanelPlace(unsigned panel, unsigned panels_across)
      : first_col(std::int64_t{panel % panels_across} * StatisticsOrder::kPanelCols),
        row(std::int64_t{panel / panels_across} * StatisticsOrder::kPanelRows +
            warp_id() * StatisticsOrder::kLaneRows),
        col(first_col + lane_id() * kGroup) {}
};

/// The panel of a block; false, and nothing is stored, where elements that were taken as finite are
/// not.
template <class T, Stored kStored, bool kWide, bool kCareful>
__device__ __forceinline__ bool compare_panel(const Lines<T>& source,
                                              const Lines<StoredBits<kStored>>& codes,
                                              const Compared& compared, const PanelPlace& place,
                                              const PanelResults& results,
                                              PanelMemory<StoredBits<kStored>>& memory) {
  clear(memory);
  __syncthreads();
  PanelThread<T, kStored, kWide, kCareful> part(source, codes, compared, results, memory, place.row,
                                                place.col);
  part.compare();
  if (!kCareful && __syncthreads_or(!part.finite()) != 0) return false;
  part.give();
  __syncthreads();
  store(memory, results, place.first_col, compared.cols);
  return true;
}

/// Apart, so that the usual comparison has the registers.
template <class T, Stored kStored, bool kWide>
__device__ __noinline__ void compare_with_care(const Lines<T>& source,
                                               const Lines<StoredBits<kStored>>& codes,
                                               const Compared& compared, const PanelPlace& place,
                                               const PanelResults& results,
                                               PanelMemory<StoredBits<kStored>>& memory) {
  compare_panel<T, kStored, kWide, true>(source, codes, compared, place, results, memory);
}

/// One block a panel, in the order of rows, then columns. kWide: groups of eight columns lie in one
/// tile.
template <class T, Stored kStored, bool kWide>
__global__ void __launch_bounds__(kPanelThreads, 4)
    panel_kernel(const __grid_constant__ Lines<T> source,
                 const __grid_constant__ Lines<StoredBits<kStored>> codes,
                 const __grid_constant__ Compared compared, unsigned panels_across,
                 const __grid_constant__ PanelResults results) {
  __shared__ PanelMemory<StoredBits<kStored>> memory;
  if constexpr (kStored == Stored::codes) {
    for (unsigned code = threadIdx.x; code < 256; code += kPanelThreads) {
      memory.values[code] = numerics::decode(compared.decoder.format, code);
    }
  }
  const PanelPlace place(blockIdx.x, panels_across);
  if (!is_plain(source, codes, compared) ||
      !compare_panel<T, kStored, kWide, false>(source, codes, compared, place, results, memory)) {
    compare_with_care<T, kStored, kWide>(source, codes, compared, place, results, memory);
  }
}

}  // namespace fp8lab::cuda
