// The ways in which a panel of statistics reads an operand beside its source, if the operand
// consists of whole groups of eight:
//
//   TiledRows      codes as the source lies, tiles of one row: the scale comes with the row
//   StraightCodes  codes as the source lies, and each 8 x 8 of them in one tile
//   TurnedCodes    codes in columns of the source: they are transposed 8 x 8 at a time
//                  (operand_lines.cuh) through shared memory; tiles of eight rows
//   SourceHash     the operand is the source itself: only the hash, along rows or columns
//   NoOperand      there is no operand
//
// For every eight rows, all threads of a warp call
//
//   begin          starts asynchronous copies, while the previous eight rows are processed
//   enter          work once for the eight rows; the thread has waited for its copies
//     fetch, take  start the copy of each of kRowsAtOnce rows, and read it when it has arrived
//     add_row      adds a row; returns kOrdinary if nothing needs counting
//     count_row    counts zeros and saturated elements, in the few rows that are not ordinary
//   leave          work once with the largest magnitudes of the columns
#pragma once

#include <cuda_fp8.h>

#include <cuda_pipeline_primitives.h>

#include <cstdint>
#include <type_traits>

#include "kernels/quantize/statistics/statistics_block.cuh"

namespace fp8lab::cuda {

// --- codes --------------------------------------------------------------------------------------

using CodeGroup = ElementWords<std::uint8_t>;

/// Decodes eight values, without their scales.
template <Stored kStored>
__device__ void decode(const CodeGroup& codes, const float (&values)[256], float (&y)[kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroup; i += 2) {
    const std::uint32_t pair = codes.words[i / 4] >> 8 * (i % 4);
    if constexpr (kStored == Stored::e4m3) {
      const auto both = static_cast<__nv_fp8x2_storage_t>(pair);
      const float2 decoded = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(both, __NV_E4M3)));
      y[i] = decoded.x;
      y[i + 1] = decoded.y;
    } else {
      y[i] = values[pair & 0xFFu];
      y[i + 1] = values[pair >> 8 & 0xFFu];
    }
  }
}

/// The bits that are set in every word of a row that needs no counting: the highest of each
/// byte. Such words combine by &.
inline constexpr std::uint32_t kOrdinary = 0x80808080u;

/// Returns kOrdinary if none of eight values y is zero. For e4m3 it looks at the codes: with scales
/// from kLeastOrdinaryScale on, a product is zero exactly if its code is.
template <Stored kStored>
__device__ std::uint32_t nonzero_values(const CodeGroup& codes, const float (&y)[kGroup]) {
  if constexpr (kStored == Stored::e4m3) {
    const auto carries = [](std::uint32_t four) { return (four & 0x7F7F7F7Fu) + 0x7F7F7F7Fu; };
    return carries(codes.words[0]) & carries(codes.words[1]);
  } else {
    float least = fabsf(y[0]);
#pragma unroll
    for (int i = 1; i < kGroup; ++i) least = fminf(least, fabsf(y[i]));
    return least == 0.0f ? 0u : kOrdinary;
  }
}

/// Common part of operands with codes.
template <class T, Stored kStored>
class Codes {
 public:
  using Bits = std::uint8_t;
  using Memory = PanelMemory<T, Bits>;
  static constexpr Stored kKind = kStored;
  static constexpr Stored kWithCare = Stored::codes;  ///< how the slow path reads them
  static constexpr bool kIsSource = false;
  static constexpr int kSums = kErrorSums;

  /// Lists the sums in the order of PanelMemory::sums.
  __device__ void list_sums(double* sums) const {
    sums[0] = sums_.yy;
    sums[1] = sums_.ee;
    sums[2] = sums_.e;
  }
  __device__ void give(Memory& memory, int operand) const {
    memory.give_count(underflow_, memory.operands[operand].underflow);
    memory.give_count(saturated_, memory.operands[operand].saturated);
    memory.give_hash(hash_, operand);
  }
  /// Returns true if all y, which were assumed to be finite, are finite.
  __device__ bool finite() const { return fabs(sums_.e) < statistics_detail::kInfinity; }
  __device__ void forget() {
    sums_ = {};
    underflow_ = saturated_ = 0;
    hash_ = 0;
  }

 protected:
  __device__ explicit Codes(const Memory& memory) : values_(memory.values) {}

  template <class Scale>
  __device__ std::uint32_t add(const double (&x)[kGroup], const CodeGroup& codes,
                               const Scale& scale) {
    float y[kGroup];
    decode<kStored>(codes, values_, y);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) y[i] = scale(i) * y[i];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sums_.add(x[i], y[i]);
    return nonzero_values<kStored>(codes, y);
  }
  template <class Scale>
  __device__ void count_underflow(const ElementWords<T>& x, const CodeGroup& codes,
                                  const Scale& scale) {
    float y[kGroup];
    decode<kStored>(codes, values_, y);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (scale(i) * y[i] == 0.0f && element_of(x, i) != 0.0f) ++underflow_;
    }
  }

  const float (&values_)[256];
  ErrorSums sums_;
  std::uint32_t underflow_ = 0, saturated_ = 0;
  std::uint64_t hash_ = 0;
};

/// Codes in rows of the source.
template <class T, Stored kStored>
class RowCodes : public Codes<T, kStored> {
  using Base = Codes<T, kStored>;

 public:
  __device__ void fetch(int i) {
    __pipeline_memcpy_async(&fetched_->of[i], at_.get(), sizeof(CodeGroup));
    at_.advance();
  }

 protected:
  __device__ RowCodes(const PanelOperand<std::uint8_t>& operand, typename Base::Memory& memory,
                      const Lane& lane)
      : Base(memory),
        fetched_(&memory.ahead.rows.codes[lane.thread]),
        at_(operand.codes.at(lane.row, lane.col), operand.codes.stride),
        place_(lane.row * operand.compared.hash_words + lane.col / kGroup,
               held(static_cast<int>(operand.compared.hash_words))) {}

  __device__ CodesOfRows fetched() const { return *fetched_; }
  __device__ void add_hash(const CodeGroup& codes) {
    this->hash_ += place_.term(codes.hash_word(0));
    place_.advance();
  }

 private:
  CodesOfRows* fetched_;
  RowPointer<const std::uint8_t> at_;
  HashPlace place_;
};

/// The lanes of a tile share its work: each row's scale, and the flag that
/// the row is not all zeros.
template <class T, Stored kStored>
class TiledRows : public RowCodes<T, kStored> {
  using Base = RowCodes<T, kStored>;

 public:
  struct Row {
    CodeGroup codes;
    float scale;
  };

  __device__ TiledRows(const PanelOperand<std::uint8_t>& operand, typename Base::Memory& memory,
                       const PanelPlace& place, const Lane& lane)
      : Base(operand, memory, lane),
        compared_(operand.compared),
        rows_(lane.rows),
        largest_code_(saturation_limit(compared_.qmax, 1.0f)) {
    const auto width = static_cast<std::uint32_t>(compared_.grid.width);
    const auto first_col = static_cast<std::uint32_t>(place.first_col);
    const std::uint32_t end_col =
        min(first_col + StatisticsOrder::kPanelCols, static_cast<std::uint32_t>(compared_.cols));
    const std::uint32_t col = lane.is_there ? static_cast<std::uint32_t>(lane.col) : first_col;
    const std::uint32_t tile = col / width;
    const std::uint32_t first = max(tile * width, first_col);
    const std::uint32_t end = min(tile * width + width, end_col);
    const std::uint32_t number = tile - first_col / width;
    const int part = lane.is_there ? static_cast<int>((col - first) / kGroup) : kWarpSize;
    part_ = held(part);
    parts_ = held(static_cast<int>((end - first + kGroup - 1) / kGroup));
    scales_ = &memory.ahead.rows.scales[warp_id()][0][number];
    nonzero_rows_ = &memory.nonzero_rows[warp_id()][number];
    scale_step_ = held(static_cast<int>(compared_.decoder.scale_stride));
    scale_at_ =
        compared_.decoder.scales + (lane.row + part) * compared_.decoder.scale_stride + tile;
    nonzero_ = operand.results.nonzero + lane.row * compared_.grid.wide + tile;
  }

  __device__ void begin(int row) {
    const float* at = scale_at_;
    for (int i = part_; i < kGroup; i += parts_) {
      __pipeline_memcpy_async(scales_ + ((row + i) % kRingRows) * kMostRowTiles, at, sizeof(float));
      at += parts_ * scale_step_;
    }
    scale_at_ += kGroup * scale_step_;
  }
  /// All lanes have left the previous eight rows, and their copies have arrived.
  __device__ void enter(int) { __syncwarp(); }
  __device__ void take(int row, Row (&rows)[kRowsAtOnce]) const {
    const CodesOfRows codes = this->fetched();
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      rows[i] = {CodeGroup::of(codes.of[i]), scales_[(row % kRingRows + i) * kMostRowTiles]};
    }
  }
  __device__ std::uint32_t add_row(const Row& row, const ElementWords<T>&,
                                   const double (&x)[kGroup], const Magnitudes<T>& magnitudes) {
    this->add_hash(row.codes);
    const std::uint32_t nonzero = this->add(x, row.codes, [&](int) { return row.scale; });
    // This bound does not exceed Compared::limit, which count_row uses. It
    // is zero for small scales.
    const std::uint32_t limit =
        Magnitudes<T>::spread(numerics::float_bits(flushed_product_down(largest_code_, row.scale)));
    return Magnitudes<T>::larger(magnitudes.largest(), limit) == limit ? nonzero : 0u;
  }
  __device__ void count_row(int number, const Row& row, const ElementWords<T>& x,
                            const Magnitudes<T>& magnitudes) {
    this->count_underflow(x, row.codes, [&](int) { return row.scale; });
    const std::uint32_t limit = compared_.limit(row.scale);
    this->saturated_ += count_saturated(magnitudes, [&](int) { return limit; });
    if (magnitudes.largest() == 0) zero_rows_ |= 1u << number;
  }
  template <class Source>
  __device__ void leave(int end, const Magnitudes<T>&, const Source&) {
    if (end != rows_) return;
    if (part_ < kWarpSize) atomicOr(nonzero_rows_, ~zero_rows_);
    __syncwarp();
    const std::uint32_t rows = *nonzero_rows_;
    for (int i = part_; i < rows_; i += parts_) {
      if ((rows >> i & 1u) != 0) nonzero_[i * compared_.grid.wide] = 1;
    }
  }

 private:
  const Compared& compared_;
  int rows_;
  int part_, parts_;       ///< number of this lane in the tile (kWarpSize: in none), and of all
  const float* scale_at_;  ///< of the next row that this lane fetches
  int scale_step_;
  float* scales_;
  std::uint8_t* nonzero_;
  std::uint32_t* nonzero_rows_;  ///< for the tile's columns in this warp, a bit for each row
  float largest_code_;
  std::uint32_t zero_rows_ = 0;  ///< for this lane
};

template <class T, Stored kStored>
class StraightCodes : public RowCodes<T, kStored> {
  using Base = RowCodes<T, kStored>;

 public:
  using Row = CodeGroup;

  __device__ StraightCodes(const PanelOperand<std::uint8_t>& operand, typename Base::Memory& memory,
                           const PanelPlace&, const Lane& lane)
      : Base(operand, memory, lane),
        tiles_(operand.compared, operand.results.nonzero, lane.tile(operand.compared.grid),
               lane.row, lane.col, lane.rows) {}

  __device__ void begin(int) {}
  __device__ void enter(int) {}
  __device__ void take(int, Row (&rows)[kRowsAtOnce]) const {
    const CodesOfRows codes = this->fetched();
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = CodeGroup::of(codes.of[i]);
  }
  __device__ std::uint32_t add_row(const Row& row, const ElementWords<T>&,
                                   const double (&x)[kGroup], const Magnitudes<T>&) {
    this->add_hash(row);
    return this->add(x, row, [&](int) { return tiles_.scale(0); }) & tiles_.ordinary();
  }
  __device__ void count_row(int, const Row& row, const ElementWords<T>& x, const Magnitudes<T>&) {
    this->count_underflow(x, row, [&](int) { return tiles_.scale(0); });
  }
  template <class Source>
  __device__ void leave(int end, const Magnitudes<T>& peaks, const Source& source) {
    this->saturated_ += tiles_.add_rows(end, peaks, source);
  }

 private:
  LaneTiles<T, LaneScales<1>, true> tiles_;
};

template <class T, Stored kStored>
class TurnedCodes : public Codes<T, kStored> {
  using Base = Codes<T, kStored>;

 public:
  using Row = CodeGroup;

  __device__ TurnedCodes(const PanelOperand<std::uint8_t>& operand, typename Base::Memory& memory,
                         const PanelPlace&, const Lane& lane)
      : Base(memory),
        turned_(&memory.ahead.turned[0][lane.thread]),
        tiles_(operand.compared, operand.results.nonzero, lane.tile(operand.compared.grid),
               lane.row, lane.col, lane.rows, {memory.ahead.scales, lane.thread}),
        at_(operand.codes.at(lane.col, lane.row)),
        step_(held(static_cast<int>(operand.codes.stride))),
        hash_words_(held(static_cast<int>(operand.compared.hash_words))),
        first_word_(lane.col * operand.compared.hash_words + lane.row / kGroup) {}

  /// Copies eight codes of each column to the slots of the rows.
  __device__ void begin(int row) {
    const std::uint8_t* column = at_;
    CodesOfRows* const to = rows(row);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      __pipeline_memcpy_async(&line(to, i), column, sizeof(CodeGroup));
      column += step_;
    }
    at_ += kGroup;
  }
  __device__ void enter(int row) {
    CodeGroup columns[kGroup];
    std::uint64_t turned[kGroup];
    CodesOfRows* const lines = rows(row);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) columns[i] = CodeGroup::of(line(lines, i));
    turn<std::uint8_t>(columns, turned);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) line(lines, i) = turned[i];
    HashPlace place(first_word_ + row / kGroup, hash_words_);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      this->hash_ += place.term(columns[i].hash_word(0));
      place.advance();
    }
  }
  __device__ void fetch(int) {}
  __device__ void take(int row, Row (&taken)[kRowsAtOnce]) const {
    const CodesOfRows codes = *rows(row);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) taken[i] = CodeGroup::of(codes.of[i]);
  }
  __device__ std::uint32_t add_row(const Row& row, const ElementWords<T>&,
                                   const double (&x)[kGroup], const Magnitudes<T>&) {
    return this->add(x, row, [&](int i) { return tiles_.scale(i); }) & tiles_.ordinary();
  }
  __device__ void count_row(int, const Row& row, const ElementWords<T>& x, const Magnitudes<T>&) {
    this->count_underflow(x, row, [&](int i) { return tiles_.scale(i); });
  }
  template <class Source>
  __device__ void leave(int end, const Magnitudes<T>& peaks, const Source& source) {
    this->saturated_ += tiles_.add_rows(end, peaks, source);
  }

 private:
  /// Returns the slot of the rows that are processed with row `row`.
  __device__ CodesOfRows* rows(int row) const {
    return turned_ + row % kRingRows / kRowsAtOnce * kPanelThreads;
  }
  /// Returns line i of the eight that begin at `first`.
  __device__ static std::uint64_t& line(CodesOfRows* first, int i) {
    return first[i / kRowsAtOnce * kPanelThreads].of[i % kRowsAtOnce];
  }

  CodesOfRows* turned_;
  LaneTiles<T, SharedScales, true> tiles_;
  const std::uint8_t* at_;
  int step_, hash_words_;
  std::int64_t first_word_;
};

// --- the source itself --------------------------------------------------------------------------

/// Hashes the source. kTranspose: the operand's vectors are the columns of the source.
template <class T, bool kTranspose>
class SourceHash {
 public:
  using Bits = T;
  using Memory = PanelMemory<T, Bits>;
  static constexpr Stored kKind = sizeof(T) == 2 ? Stored::bf16 : Stored::f32;
  static constexpr Stored kWithCare = kKind;
  static constexpr bool kIsSource = true;
  static constexpr int kSums = 0;
  struct Row {};

  __device__ SourceHash(const PanelOperand<T>& operand, Memory&, const PanelPlace&,
                        const Lane& lane)
      : source_(operand.codes),
        lane_(lane),
        nonzero_(operand.results.nonzero),
        hash_words_(held(static_cast<int>(operand.compared.hash_words))),
        place_(lane.row * operand.compared.hash_words + lane.col / kTurned<T>, hash_words_) {}

  __device__ void list_sums(double*) const {}
  __device__ void give(Memory& memory, int operand) const { memory.give_hash(hash_, operand); }
  __device__ bool finite() const { return true; }
  __device__ void forget() { hash_ = 0; }

  __device__ void begin(int) {}
  __device__ void enter(int row) {
    if constexpr (kTranspose) {
#pragma unroll
      for (int part = 0; part < static_cast<int>(sizeof(T)); ++part) {
        const std::int64_t first = lane_.row + row + part * kTurned<T>;
        ElementWords<T> lines[kTurned<T>];
        std::uint64_t turned[kGroup];
#pragma unroll
        for (int i = 0; i < kTurned<T>; ++i) {
          lines[i] = Lines<T>::load_whole(source_.at(first + i, lane_.col));
        }
        turn<T>(lines, turned);
        HashPlace place(lane_.col * hash_words_ + first / kTurned<T>, hash_words_);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          hash_ += place.term(turned[i]);
          place.advance();
        }
      }
    }
  }
  __device__ void fetch(int) {}
  __device__ void take(int, Row (&)[kRowsAtOnce]) const {}
  __device__ std::uint32_t add_row(const Row&, const ElementWords<T>& words,
                                   const double (&)[kGroup], const Magnitudes<T>&) {
    if constexpr (!kTranspose) {
#pragma unroll
      for (int i = 0; i < ElementWords<T>::kHashWords; ++i) {
        hash_ += place_.term(words.hash_word(i), i);
      }
      place_.advance();
    }
    return kOrdinary;
  }
  __device__ void count_row(int, const Row&, const ElementWords<T>&, const Magnitudes<T>&) {}
  template <class Source>
  __device__ void leave(int, const Magnitudes<T>& peaks, const Source&) {
    if (peaks.largest() != 0) *nonzero_ = 1;
  }

 private:
  const Lines<T>& source_;
  const Lane& lane_;
  std::uint8_t* nonzero_;  ///< for the single tile
  int hash_words_;
  HashPlace place_;
  std::uint64_t hash_ = 0;
};

/// Stands for a missing second operand.
class NoOperand {
 public:
  using Bits = std::uint8_t;
  static constexpr int kSums = 0;
  struct Row {};

  template <class... Arguments>
  __device__ explicit NoOperand(const Arguments&...) {}
  __device__ void list_sums(double*) const {}
  template <class Memory>
  __device__ void give(Memory&, int) const {}
  __device__ bool finite() const { return true; }
  __device__ void forget() {}
  __device__ void begin(int) {}
  __device__ void enter(int) {}
  __device__ void fetch(int) {}
  __device__ void take(int, Row (&)[kRowsAtOnce]) const {}
  template <class... Arguments>
  __device__ std::uint32_t add_row(const Arguments&...) {
    return kOrdinary;
  }
  template <class... Arguments>
  __device__ void count_row(const Arguments&...) {}
  template <class... Arguments>
  __device__ void leave(const Arguments&...) {}
};

}  // namespace fp8lab::cuda
