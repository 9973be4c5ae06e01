// One thread's part of a panel's statistics, a lane of StatisticsOrder: the position of its 32 x 8
// elements, their sums, their exponents, and their tiles.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/ptx/ptx.cuh"
#include "kernels/quantize/statistics/statistics_operand.cuh"

namespace fp8lab::cuda {

// --- position of a thread ------------------------------------------------------------------------

/// The tile that contains an element.
struct TilePlace {
  std::int64_t row, col;

  __device__ TilePlace(const TileGrid& grid, std::int64_t element_row, std::int64_t element_col)
      : row(element_row / grid.height), col(element_col / grid.width) {}
  /// Uses 32-bit divisions. Precondition: all extents fit into 32 bits.
  __device__ TilePlace(const TileGrid& grid, std::uint32_t element_row, std::uint32_t element_col)
      : row(element_row / static_cast<std::uint32_t>(grid.height)),
        col(element_col / static_cast<std::uint32_t>(grid.width)) {}
};

/// The 32 x 8 elements of a thread. The threads of a warp stay together: a thread beyond the last
/// column processes the first columns instead, and discards its results.
struct Lane {
  int rows;  ///< 0: the warp has no rows
  bool is_there;
  std::int64_t row, col;
  int thread;

  __device__ Lane(const PanelPlace& place, const Compared& compared)
      : rows(static_cast<int>(max(std::int64_t{0}, min(compared.rows - place.row,
                                                       std::int64_t{StatisticsOrder::kLaneRows})))),
        is_there(place.col < compared.cols),
        row(rows > 0 ? place.row : 0),
        col(is_there ? place.col : 0),
        thread(held(static_cast<int>(threadIdx.x))) {}

  /// Returns the tile of its first element.
  __device__ TilePlace tile(const TileGrid& grid) const {
    return {grid, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(col)};
  }
};

/// A position in memory that advances row by row.
template <class Element>
class RowPointer {
 public:
  __device__ RowPointer(Element* at, std::int64_t elements)
      : at_(at), step_(held(static_cast<int>(elements * sizeof(Element)))) {}
  __device__ Element* get() const { return at_; }
  __device__ void advance() {
    using Byte = std::conditional_t<std::is_const_v<Element>, const char, char>;
    at_ = reinterpret_cast<Element*>(reinterpret_cast<Byte*>(at_) + step_);
  }

 private:
  Element* at_;
  int step_;
};

/// The position of a word in a hash, which advances by a fixed number of words.
class HashPlace {
 public:
  __device__ HashPlace(std::int64_t word, int step)
      : at_(numerics::hash_place(numerics::HashedPart::codes, static_cast<std::uint64_t>(word))),
        step_(step) {}
  /// Returns the term of the word that lies `further` words after this position.
  __device__ std::uint64_t term(std::uint64_t word, unsigned further = 0) const {
    return numerics::hash_term_at(at_ + further, word);
  }
  __device__ void advance() { at_ += static_cast<std::uint32_t>(step_); }

 private:
  std::uint64_t at_;
  int step_;
};

// --- elements -----------------------------------------------------------------------------------

/// Magnitudes of eight elements; a word holds two bf16 or one f32.
template <class T>
struct Magnitudes {
  static constexpr bool kPairs = sizeof(T) == 2;
  static constexpr int kWords = ElementWords<T>::kWords;
  std::uint32_t words[kWords] = {};

  __device__ static std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    if constexpr (kPairs) return __vmaxu2(a, b);
    return max(a, b);
  }
  __device__ static std::uint32_t smaller(std::uint32_t a, std::uint32_t b) {
    if constexpr (kPairs) return __vminu2(a, b);
    return min(a, b);
  }
  /// Returns the upper half of a magnitude in both halves of a word for bf16, else the magnitude.
  __device__ static std::uint32_t spread(std::uint32_t bits) {
    if constexpr (kPairs) return __byte_perm(bits, bits, 0x3232);
    return bits;
  }

  __device__ void raise(const Magnitudes& other) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = larger(words[i], other.words[i]);
  }
  __device__ void raise(const Magnitudes& a, const Magnitudes& b) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = kPairs ? __vimax3_u16x2(words[i], a.words[i], b.words[i])
                        : __vimax3_u32(words[i], a.words[i], b.words[i]);
    }
  }
  /// Returns the FP32 bits of magnitude i.
  __device__ std::uint32_t operator[](int i) const {
    if constexpr (kPairs) return i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u;
    return words[i];
  }
  __device__ void clear(int i) {
    if constexpr (kPairs) {
      words[i / 2] &= i % 2 == 0 ? 0xFFFF0000u : 0xFFFFu;
    } else {
      words[i] = 0;
    }
  }
  /// Return the largest or the least magnitude; for bf16 of the even and of the odd
  /// elements, one in each half.
  __device__ std::uint32_t largest() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all = larger(all, words[i]);
    return all;
  }
  __device__ std::uint32_t least() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all = smaller(all, words[i]);
    return all;
  }
  /// Returns the upper halves of elements 2 i and 2 i + 1, as bf16.
  __device__ std::uint32_t pair(int i) const {
    if constexpr (kPairs) return words[i];
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

/// Returns element i, which is bf16 or f32.
template <class T>
__device__ float element_of(const ElementWords<T>& elements, int i) {
  if constexpr (sizeof(T) == 2) {
    const std::uint32_t pair = elements.words[i / 2];
    return numerics::bits_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
  } else {
    return numerics::bits_float(elements.words[i]);
  }
}

template <class T>
__device__ void widen(const ElementWords<T>& elements, double (&wide)[kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroup; i += 2) {
    if constexpr (sizeof(T) == 2) {
      widen_pair(elements.words[i / 2], wide[i], wide[i + 1]);
    } else {
      wide[i] = element_of(elements, i);
      wide[i + 1] = element_of(elements, i + 1);
    }
  }
}

/// Counts the saturated magnitudes of a group.
template <class T, class Limit>
__device__ std::uint32_t count_saturated(const Magnitudes<T>& magnitudes, const Limit& limit) {
  std::uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (magnitudes[i] <= numerics::kF32Infinity && magnitudes[i] > limit(i)) ++count;
  }
  return count;
}

// --- sums of one lane ----------------------------------------------------------------------------

/// Sums of the source.
struct SourceSums {
  double xx = 0.0, xxxx = 0.0, x = 0.0;

  /// T is the type of x.
  template <class T>
  __device__ void add(double value) {
    const double square = value * value;
    xx += square;
    // A product of two FP32 values, or of four bf16 values, is exact in FP64. So each addition
    // rounds once, fused or not.
    xxxx = sizeof(T) == 2 ? __fma_rn(square, square, xxxx) : xxxx + square * square;
    x += fabs(value);
  }
};

/// Sums of an operand.
struct ErrorSums {
  double yy = 0.0, ee = 0.0, e = 0.0;

  __device__ void add(double x, double y) {
    const double error = y - x;
    yy = __fma_rn(y, y, yy);
    ee = __fma_rn(error, error, ee);
    e += error;
  }
};

/// Sums each value over the lanes of a warp in the order of StatisticsOrder; lane i returns the sum
/// of value i. Precondition: all lanes call it. At each step a lane keeps one of two values and
/// gives the other to its neighbour.
template <int kCount>
__device__ double sum_lanes(double (&values)[kCount]) {
  static_assert(kCount <= kWarpSize);
  int count = kCount;
#pragma unroll
  for (int span = 1; span < kWarpSize; span *= 2) {
    const bool upper = (lane_id() & span) != 0;
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      const bool alone = i + 1 == count;
      const double mine = upper && !alone ? values[i + 1] : values[i];
      const double given = upper || alone ? values[i] : values[i + 1];
      values[i / 2] = mine + __shfl_xor_sync(kAllLanes, given, span);
    }
    count = (count + 1) / 2;
  }
  return values[0];
}

// --- exponents ----------------------------------------------------------------------------------

using ExponentCounts = std::uint32_t[kExponentBins][kWarpSize];

/// The exponent counters of one lane of a warp.
class ExponentBins {
 public:
  __device__ explicit ExponentBins(ExponentCounts& bins)
      : bins_(reinterpret_cast<std::byte*>(bins)),
        lane_(held(static_cast<std::uint32_t>(lane_id() * sizeof(std::uint32_t)))),
        down_(held((-kLowest & 0xFFFFu) * 0x10001u)) {}

  /// Counts the exponents of two magnitudes in bf16.
  __device__ void count(std::uint32_t pair) const {
    // The exponent starts at bit 7, and bins are 128 bytes apart, so that it is the byte offset of
    // its bin; the lane's offset fills the bits below.
    const std::uint32_t bins =
        __viaddmin_s16x2_relu(pair & 0x7F807F80u, down_, (kHighest - kLowest) * 0x10001u);
    atomicAdd(at((bins & 0xFFFFu) | lane_), 1u);
    atomicAdd(at((bins >> 16) + lane_), 1u);
  }
  /// Discards the counts of this lane, in all warps. Precondition: the lane counts in none of them.
  __device__ void clear() const {
    for (int bin = 0; bin < kExponentBins; ++bin) {
      *at(lane_ + static_cast<std::uint32_t>(bin * kWarpSize * sizeof(std::uint32_t))) = 0;
    }
  }
  /// Subtracts zeros from the lowest bin.
  __device__ void remove(std::uint32_t zeros) const { atomicAdd(at(lane_), 0u - zeros); }

 private:
  static_assert(kWarpSize * sizeof(std::uint32_t) == 1u << 7);
  static constexpr std::uint32_t kLowest = (127 + kLowestBinExponent) << 7;
  static constexpr std::uint32_t kHighest = kLowest + ((kExponentBins - 1) << 7);

  __device__ std::uint32_t* at(std::uint32_t place) const {
    return reinterpret_cast<std::uint32_t*>(bins_ + place);
  }

  std::byte* bins_;
  std::uint32_t lane_;  ///< offset of the lane in bytes
  std::uint32_t down_;  ///< subtracts the lowest bin, for both of a pair
};

// --- tiles --------------------------------------------------------------------------------------

/// For scales from here on, the product with a code of e4m3 is zero exactly if the code is. For
/// other formats the product itself is tested.
inline constexpr float kLeastOrdinaryScale = 0x1p-126f;

/// Scales in registers: one for all columns of a thread, or one for each column.
template <int kColumns>
class LaneScales {
  static_assert(kColumns == 1 || kColumns == kGroup);

 public:
  static constexpr int kCount = kColumns;
  __device__ float operator[](int i) const { return of_[kCount == 1 ? 0 : i]; }
  __device__ void set(int i, float scale) { of_[i] = scale; }

 private:
  float of_[kCount] = {};
};

/// One scale for each column in shared memory, which saves registers.
class SharedScales {
 public:
  static constexpr int kCount = kGroup;
  using Memory = float4[kCount / 4][kPanelThreads];

  __device__ SharedScales(Memory& memory, int thread) : at_(&memory[0][thread]) {}
  __device__ float operator[](int i) const { return part(i)[i % 4]; }
  __device__ void set(int i, float scale) { part(i)[i % 4] = scale; }

 private:
  __device__ float* part(int i) const {
    return reinterpret_cast<float*>(at_ + i / 4 * kPanelThreads);
  }

  float4* at_;
};

/// The tiles that contain a thread's elements. kWhole: all eight columns lie inside the source.
template <class T, class TileScales, bool kWhole>
class LaneTiles {
  static constexpr int kScales = TileScales::kCount;

 public:
  __device__ LaneTiles(const Compared& compared, std::uint8_t* nonzero, const TilePlace& first,
                       std::int64_t row, std::int64_t col, int rows, const TileScales& scales = {})
      : compared_(compared), rows_(rows), scales_(scales) {
    const TileGrid& grid = compared.grid;
    end_ = static_cast<int>(min((first.row + 1) * grid.height - row, std::int64_t{rows}));
    height_ = static_cast<int>(min(grid.height, std::int64_t{StatisticsOrder::kLaneRows}));
    count_ = static_cast<int>(min(compared.cols - col, std::int64_t{kGroup}));
    width_ = static_cast<int>(min(grid.width, std::int64_t{kGroup}));
    left_ = static_cast<int>(min((first.col + 1) * grid.width - col, std::int64_t{kGroup}));
    nonzero_ = nonzero + first.row * grid.wide + first.col;
    scale_at_ = compared.decoder.scales;
    if (scale_at_ != nullptr) {
      scale_at_ += first.row * compared.scale_row_step() + first.col * compared.scale_col_step();
    }
    enter();
  }

  __device__ float scale(int i) const { return scales_[i]; }
  /// Returns all bits set, or 0 if a scale is below kLeastOrdinaryScale.
  __device__ std::uint32_t ordinary() const { return ordinary_; }

  /// Adds the rows before `end`. Precondition: they lie in one row of tiles, and
  /// `magnitudes` are the largest of each column. At the end of a tile, returns the number
  /// of saturated elements in it, else 0.
  template <class Source>
  __device__ std::uint32_t add_rows(int end, const Magnitudes<T>& magnitudes,
                                    const Source& source) {
    peaks_.raise(magnitudes);
    if (end != end_) return 0;
    const float largest_code = saturation_limit(compared_.qmax, 1.0f);
    bool may_saturate = false;
    for_each_column([&](int i, int tile) {
      if (peaks_[i] != 0) nonzero_[tile] = 1;
      // This bound does not exceed Compared::limit, which count_rows uses.
      const float limit = flushed_product_down(largest_code, scale(i));
      may_saturate = may_saturate || !(numerics::bits_float(peaks_[i]) <= limit) ||
                     (!kWhole && peaks_[i] > numerics::kF32MaxFinite);
    });
    const std::uint32_t count = may_saturate ? count_rows(end, source) : 0;
    begin_ = end;
    peaks_ = {};
    if (end != rows_) descend();
    return count;
  }

 private:
  /// Calls take(i, tile) for each column; tiles count from the first column's.
  template <class Take>
  __device__ void for_each_column(const Take& take) const {
    if (kWhole && kScales == kGroup && width_ == 1) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) take(i, i);
      return;
    }
    int tile = 0, left = left_;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (kWhole || i < count_) take(i, tile);
      if (kScales != 1 && --left == 0) {
        ++tile;
        left = width_;
      }
    }
  }
  /// Counts the saturated elements of the current tiles, in rows before `end`.
  template <class Source>
  __device__ std::uint32_t count_rows(int end, const Source& source) const {
    std::uint32_t limits[kScales], count = 0;
#pragma unroll
    for (int i = 0; i < kScales; ++i) limits[i] = compared_.limit(scale(i));
#pragma unroll 1
    for (int row = begin_; row < end; ++row) {
      count += count_saturated(magnitudes_of(source(row)),
                               [&](int i) { return limits[kScales == 1 ? 0 : i]; });
    }
    return count;
  }
  __device__ void descend() {
    end_ = min(end_ + height_, rows_);
    nonzero_ += compared_.grid.wide;
    if (scale_at_ != nullptr) scale_at_ += compared_.scale_row_step();
    enter();
  }
  __device__ void enter() {
    const float* at = scale_at_;
    const std::int64_t step = compared_.scale_col_step();
    bool is_small = false;
    const auto set = [&](int i, float scale) {
      scales_.set(i, scale);
      is_small = is_small || scale < kLeastOrdinaryScale;
    };
    if (at == nullptr) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) set(i, 1.0f);
    } else if constexpr (kScales == 1) {
      set(0, __ldg(at));
    } else {
      for_each_column([&](int i, int tile) { set(i, __ldg(at + tile * step)); });
    }
    ordinary_ = is_small ? 0u : ~0u;
  }

  const Compared& compared_;
  const float* scale_at_;     ///< of the first column; nullptr: none
  std::uint8_t* nonzero_;     ///< flag of the first column's tile
  int rows_, end_, height_;   ///< rows of the thread; end and height of the current tiles
  int begin_ = 0;             ///< first row of the current tiles
  int count_, width_, left_;  ///< columns; of a tile, and left in the first one; at most 8
  TileScales scales_;
  std::uint32_t ordinary_;
  Magnitudes<T> peaks_;  ///< largest magnitudes of the columns in the current tiles
};

}  // namespace fp8lab::cuda
