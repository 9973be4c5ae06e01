// The kernel that quantizes in one pass over the source: 128 x 128 elements stay in registers from
// the amax of their tiles to their codes. A source loads its elements, or computes them from its
// inputs (quantize_fused_blocks.cu); a thread may process several patches, one after another.
//
//   source, bf16 or f32                       +------- 128 columns, 16 lanes of 8 -------+
//        |  16-byte loads, zeros outside       | warp 0: 16 rows, 2 lanes of 8            |
//        v                                     | warp 1                                   |
//   Patch: 8 x 8 elements a thread             |  ...                                     |
//        |  in registers to the end            | warp 7                                   |
//        |                                     +------------------------------------------+
//        +--> amax of the tensor (delayed): raise(), at most one atomic a block
//        |
//        +--> factors
//       given          by the caller: one for the tensor, or one for each line of the operand
//       inside a warp  1xG and squares up to 16: shuffles; the lanes share out the scales
//       across warps   parts of columns and squares from 32 on, through row_parts and
//                      turned_parts (8 warps x 132 maxima): write_parts
//                      barrier    find_scales, a thread a tile: scale to global memory,
//                                 factor in the place of the first part
//        |                     barrier    shared_factors
//        v
//   codes
//        +--> straight: 8 bytes for each row of a patch, whole 128-byte lines for a warp
//        +--> transposed: 4 x 4 bytes at a time in registers, to TransposedCodes (16 KiB)
//               barrier        16-byte pieces of the operand's rows to global memory
//
// With both orientations: transposed codes to shared memory, straight codes, barrier, pieces.
#pragma once

#include "kernels/quantize/quantize_group.cuh"

namespace fp8lab::cuda {

inline constexpr int kSide = 128;
inline constexpr int kBlockThreads = 256;
inline constexpr int kLanesAcross = 16, kLanesDown = 2;
inline constexpr int kWarps = kBlockThreads / kWarpSize;
inline constexpr int kWarpRowShift = 4, kWarpRows = 1 << kWarpRowShift;
static_assert(kWarpRows == kLanesDown * kGroup);
static_assert(kLanesAcross * kLanesDown == kWarpSize);
static_assert(kWarpRows * kWarps == kSide && kLanesAcross * kGroup == kSide);

/// Number of blocks that cover a matrix.
inline unsigned blocks_of(const TensorView& source) {
  return static_cast<unsigned>((source.rows + kSide - 1) / kSide *
                               ((source.cols + kSide - 1) / kSide));
}

/// Position of a thread's elements in its block, and of the block in the source. kWhole: every
/// block is complete, and every row of all inputs and outputs begins on a 16-byte boundary.
template <bool kWhole_>
struct Place {
  static constexpr bool kWhole = kWhole_;
  std::int64_t rows, cols;  ///< of the source
  std::int64_t row0, col0;  ///< of the block
  int lane, warp, row, col;

  /// Block `across` of the row of blocks `down`.
  __device__ Place(std::int64_t source_rows, std::int64_t source_cols, unsigned down,
                   unsigned across)
      : rows(source_rows), cols(source_cols) {
    row0 = std::int64_t{down} * kSide;
    col0 = std::int64_t{across} * kSide;
    lane = static_cast<int>(threadIdx.x % kWarpSize);
    warp = static_cast<int>(threadIdx.x / kWarpSize);
    row = static_cast<int>(threadIdx.x / kLanesAcross * kGroup);
    col = static_cast<int>(threadIdx.x % kLanesAcross * kGroup);
  }
  /// Returns true if all of the block can be accessed in 16-byte pieces. `wide`: each row
  /// begins on a 16-byte boundary.
  __device__ bool whole(bool wide) const {
    return kWhole || (wide && row0 + kSide <= rows && col0 + kSide <= cols);
  }
  /// Number of the thread's columns that lie inside the source.
  __device__ int count() const {
    if (kWhole) return kGroup;
    return static_cast<int>(max(std::int64_t{0}, min(cols - col0 - col, std::int64_t{kGroup})));
  }
  /// Number of elements of the thread's row `r` that lie inside the source.
  __device__ int count(int r) const { return kWhole || row0 + row + r < rows ? count() : 0; }
  /// Index in the source of the thread's element (r, c). Precondition: move_right was not called.
  __device__ std::int64_t position(int r, int c) const {
    return (row0 + row + r) * cols + col0 + col + c;
  }
  __device__ bool contains(int block_row, int block_col) const {
    return kWhole || (row0 + block_row < rows && col0 + block_col < cols);
  }
  /// Moves on by `width` columns in a source that is `width` columns wider. The asm
  /// keeps the compiler from holding values derived from the old position in registers,
  /// of which there are too few.
  __device__ void move_right(std::int64_t width) {
    col0 += width;
    cols += width;
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(row), "+r"(col));
  }
};

/// Numbers blocks across the source, or down if only the transpose is written, so that codes that
/// are written at the same time lie side by side.
template <bool kDown, bool kWhole = false>
__device__ Place<kWhole> place_of_block(std::int64_t rows, std::int64_t cols) {
  const auto count = static_cast<unsigned>(((kDown ? rows : cols) + kSide - 1) / kSide);
  const unsigned outer = blockIdx.x / count, inner = blockIdx.x % count;
  return {rows, cols, kDown ? inner : outer, kDown ? outer : inner};
}

/// The thread's 8 x 8 elements, zeros outside the source.
template <class T>
struct Patch {
  Group<T> row[kGroup];

  template <class Place>
  __device__ void load(const Rows<T>& source, const Place& at) {
    const T* first = source.at(at.row0 + at.row, at.col0 + at.col);
    if (at.whole(source.wide)) {
#pragma unroll
      for (int r = 0; r < kGroup; ++r) row[r].load(first + r * source.stride);
      return;
    }
#pragma unroll
    for (int r = 0; r < kGroup; ++r) row[r].load_some(first + r * source.stride, at.count(r));
  }
  /// Returns the largest magnitude of each column.
  __device__ Magnitudes<T> columns() const {
    Magnitudes<T> largest(row[0]);
#pragma unroll
    for (int r = 1; r < kGroup; ++r) largest.raise(Magnitudes<T>(row[r]));
    return largest;
  }
  __device__ std::uint32_t amax() const { return columns().amax(); }
  /// Compute the FP32 bits of the largest magnitude of each row, and of each column.
  __device__ void row_amax(std::uint32_t (&largest)[kGroup]) const {
#pragma unroll
    for (int r = 0; r < kGroup; ++r) largest[r] = Magnitudes<T>(row[r]).amax();
  }
  __device__ void column_amax(std::uint32_t (&largest)[kGroup]) const {
    const Magnitudes<T> all = columns();
#pragma unroll
    for (int c = 0; c < kGroup; ++c) largest[c] = all.at(c);
  }
};

/// The tiles of both orientations if known at compile time. Implies that the kernel computes the
/// scales: no factors are given.
enum class Tiles {
  any,
  vectors,  ///< 1 x kSide
  squares,  ///< kSide x kSide
};

/// Layout of one orientation's tiles in a block. A tile is a square or, if kTransposed, a part of a
/// column, else a part of a row; its sides have 16 to 128 elements of the source.
template <bool kTransposed_, Tiles kTiles>
struct TileMap {
  static constexpr bool kTransposed = kTransposed_;
  int row_shift, col_shift;
  bool given;  ///< the caller provides the factors

  __device__ explicit TileMap(const BlockOperand& operand)
      : row_shift(operand.row_shift),
        col_shift(operand.col_shift),
        given(operand.factors != nullptr) {
    if (kTiles == Tiles::any) return;
    row_shift = kTransposed || kTiles == Tiles::squares ? 7 : 0;
    col_shift = kTransposed && kTiles != Tiles::squares ? 0 : 7;
    given = false;
  }
  __device__ bool square() const { return row_shift == col_shift; }
  __device__ bool in_warp() const { return square() ? 1 << row_shift <= kWarpRows : !kTransposed; }
  /// Returns true if tiles reach over several warps, which find their factors together.
  __device__ bool shared() const { return !given && !in_warp(); }

  // For tiles that several warps share, each warp contributes one part to each amax: for columns a
  // line of kSide parts, for squares one part for each tile width.
  static constexpr int kLine = kSide + 4;  ///< padded against bank conflicts
  static constexpr int kParts = kWarps * kLine;

  __device__ int parts() const { return 1 << (row_shift - kWarpRowShift); }
  /// Number of tiles, and element (row, col) of the block where tile i begins. Tiles of a column
  /// have consecutive indices, so that neighbouring threads write neighbouring scales.
  __device__ int count() const { return kSide * kSide >> (row_shift + col_shift); }
  __device__ void start(int i, int& row, int& col) const {
    const int down_shift = 7 - row_shift;
    row = (i & ((1 << down_shift) - 1)) << row_shift;
    col = i >> down_shift << col_shift;
  }
  /// Index of part `index` of the tile that contains element (row, col).
  __device__ int part(int row, int col, int index) const {
    return ((row >> row_shift) * parts() + index) * kLine + (col >> col_shift);
  }
};

/// Writes the scale of the tile that contains element (row, col) of the block.
template <class Map, class Place>
__device__ void write_scale(const Map& map, const BlockOperand& operand, const Place& at, int row,
                            int col, float scale) {
  const std::int64_t i = (at.row0 + row) >> map.row_shift;
  const std::int64_t j = (at.col0 + col) >> map.col_shift;
  operand.scales[Map::kTransposed ? j * operand.scale_stride + i : i * operand.scale_stride + j] =
      scale;
}

// --- tiles inside a warp ------------------------------------------------------------------------

/// Factors of rows whose tiles reach over kLanes lanes. Each lane keeps the factors of some rows.
template <int kLanes>
class RowFactors {
  using Lanes = Spread<kGroup, kLanes, 1>;

 public:
  /// Computes the largest magnitudes of the rows that this lane keeps.
  template <class T, class Place>
  __device__ void measure(const Patch<T>& patch, const Place& at) {
    std::uint32_t largest[kGroup];
    patch.row_amax(largest);
    Lanes::reduce(at.lane, largest);
#pragma unroll
    for (int i = 0; i < Lanes::kKept; ++i) kept_[i] = numerics::bits_float(largest[i]);
  }
  /// Turns these magnitudes into factors and writes the scales.
  template <class Map, class Place>
  __device__ void find(const Map& map, const BlockOperand& operand, const Place& at) {
    const int col = at.col - Lanes::place(at.lane) * kGroup;  // where the tile begins
#pragma unroll
    for (int i = 0; i < Lanes::kKept; ++i) {
      const numerics::TileScale scale = scale_of_tile(operand, numerics::float_bits(kept_[i]));
      kept_[i] = factor_of(operand, scale);
      const int row = at.row + Lanes::first(at.lane) + i;
      if (at.contains(row, col)) write_scale(map, operand, at, row, col, scale.decode);
    }
  }
  /// Collects the factors of all rows of the thread.
  __device__ void gather(int lane, float (&factors)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) factors[i] = Lanes::gather(lane, kept_, i);
  }

 private:
  float kept_[Lanes::kKept];
};

/// Computes the factors of a square of `lanes` x `lanes` patches and writes its scale.
template <class Map, class T, class Place>
__device__ void square_factors(const Map& map, const BlockOperand& operand, const Patch<T>& patch,
                               const Place& at, int lanes, float (&factors)[kGroup]) {
  std::uint32_t largest = patch.amax();
  for (int span = 1; span < lanes; span *= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, span));
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, span * kLanesAcross));
  }
  const numerics::TileScale scale = scale_of_tile(operand, largest);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) factors[i] = factor_of(operand, scale);
  const int extent = lanes * kGroup;
  if (at.row % extent == 0 && at.col % extent == 0 && at.contains(at.row, at.col)) {
    write_scale(map, operand, at, at.row, at.col, scale.decode);
  }
}

template <class Map, class T, class Place>
__device__ void warp_factors(const Map& map, const BlockOperand& operand, const Patch<T>& patch,
                             const Place& at, float (&factors)[kGroup]) {
  const auto rows = [&]<int kLanes>() {
    RowFactors<kLanes> found;
    found.measure(patch, at);
    found.find(map, operand, at);
    found.gather(at.lane, factors);
  };
  if (map.square()) {
    square_factors(map, operand, patch, at, (1 << map.row_shift) / kGroup, factors);
  } else if constexpr (!Map::kTransposed) {
    switch (map.col_shift) {
      case 4: return rows.template operator()<2>();
      case 5: return rows.template operator()<4>();
      case 6: return rows.template operator()<8>();
      default: return rows.template operator()<kLanesAcross>();
    }
  }
}

// --- tiles of several warps ---------------------------------------------------------------------

/// line[c] = largest magnitude of the warp's part of column c of the block.
template <class T, class Place>
__device__ void write_column_parts(const Patch<T>& patch, const Place& at, std::uint32_t* line) {
  using Lanes = Spread<kGroup, kLanesDown, kLanesAcross>;
  static_assert(Lanes::kKept == 4);
  std::uint32_t largest[kGroup];
  patch.column_amax(largest);
  Lanes::reduce(at.lane, largest);
  *reinterpret_cast<uint4*>(line + at.col + Lanes::first(at.lane)) = {largest[0], largest[1],
                                                                      largest[2], largest[3]};
}

template <class Map, class T, class Place>
__device__ void write_parts(const Map& map, const Patch<T>& patch, const Place& at,
                            std::uint32_t* parts) {
  std::uint32_t* const line = parts + at.warp * map.kLine;
  if (!map.square()) return write_column_parts(patch, at, line);
  const int lanes = (1 << map.col_shift) / kGroup;
  std::uint32_t largest = patch.amax();
  largest = max(largest, __shfl_xor_sync(kAllLanes, largest, kLanesAcross));
  for (int span = 1; span < lanes; span *= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, span));
  }
  if (at.lane < kLanesAcross && at.lane % lanes == 0) line[at.col >> map.col_shift] = largest;
}

/// Computes the scales of the block's tiles, one thread for each tile. The two orientations count
/// threads from opposite ends, so that with few tiles they keep different warps busy. A tile's
/// factor replaces its first part.
template <class Map, class Place>
__device__ void find_scales(const Map& map, const BlockOperand& operand, const Place& at,
                            std::uint32_t* parts) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = Map::kTransposed ? thread : kBlockThreads - 1 - thread; i < map.count();
       i += kBlockThreads) {
    int row, col;
    map.start(i, row, col);
    if (!at.contains(row, col)) continue;
    std::uint32_t largest = 0;
    for (int part = 0; part < map.parts(); ++part) {
      largest = max(largest, parts[map.part(row, col, part)]);
    }
    const numerics::TileScale scale = scale_of_tile(operand, largest);
    parts[map.part(row, col, 0)] = numerics::float_bits(factor_of(operand, scale));
    write_scale(map, operand, at, row, col, scale.decode);
  }
}

/// Reads the factors of the thread's lines. Precondition: find_scales has run.
template <class Map, class Place>
__device__ void shared_factors(const Map& map, const Place& at, const std::uint32_t* parts,
                               float (&factors)[kGroup]) {
  const std::uint32_t* const first = parts + map.part(at.row, at.col, 0);
  if (map.square()) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) factors[i] = numerics::bits_float(*first);
    return;
  }
  const auto* line = reinterpret_cast<const float4*>(first);
  const float4 low = line[0], high = line[1];
  factors[0] = low.x, factors[1] = low.y, factors[2] = low.z, factors[3] = low.w;
  factors[4] = high.x, factors[5] = high.y, factors[6] = high.z, factors[7] = high.w;
}

/// Reads the caller's factors: one for each line of the operand, or one for all.
template <bool kTransposed, class Place>
__device__ void given_factors(const BlockOperand& operand, const Place& at,
                              float (&factors)[kGroup]) {
  const std::int64_t first = kTransposed ? at.col0 + at.col : at.row0 + at.row;
  const std::int64_t last = (kTransposed ? at.cols : at.rows) - 1;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    factors[i] = operand.factors[min(first + i, last) * operand.factor_step];
  }
}

template <class Map, class T, class Place>
__device__ void find_factors(const Map& map, const BlockOperand& operand, const Patch<T>& patch,
                             const Place& at, const std::uint32_t* parts,
                             float (&factors)[kGroup]) {
  if (map.given) {
    given_factors<Map::kTransposed>(operand, at, factors);
  } else if (map.in_warp()) {
    warp_factors(map, operand, patch, at, factors);
  } else {
    shared_factors(map, at, parts, factors);
  }
}

// --- codes --------------------------------------------------------------------------------------

/// columns[j], byte i = rows[i], byte j.
__device__ inline void transpose_bytes(const std::uint32_t (&rows)[4],
                                       std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140);
  const std::uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const std::uint32_t high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

/// The transposed codes of a block. Row c (a column of the source) holds pieces of 8 codes. Piece p
/// is stored at p ^ c / 8: this swizzle spreads a column of pieces over all banks and keeps the two
/// pieces of a pair together.
struct TransposedCodes {
  static constexpr unsigned kPieces = kSide / kGroup;
  uint2 pieces[kSide * kPieces];

  __device__ uint2& piece(unsigned col, unsigned p) {
    return pieces[col * kPieces + (p ^ col / kGroup)];
  }
  /// Returns codes [16 p, 16 p + 16) of a row.
  __device__ uint4 pair(unsigned col, unsigned p) const {
    const unsigned at = 2 * p ^ col / kGroup;
    const uint4 both = reinterpret_cast<const uint4*>(pieces)[(col * kPieces + at) / 2];
    return at % 2 == 0 ? both : uint4{both.z, both.w, both.x, both.y};
  }
};

/// Encodes the thread's elements: with factors of rows to global memory, in the source's
/// orientation; with factors of columns to shared memory, transposed. Works on four rows and
/// columns at a time, which it reads once for both.
template <class Cast, bool kRow, bool kTransposed, class T, class Place>
__device__ void encode(const BlockOperand& row, const float (&row_factors)[kGroup],
                       const BlockOperand& transposed, const float (&turned_factors)[kGroup],
                       const Patch<T>& patch, const Place& at, TransposedCodes& codes) {
  const Cast row_cast(row), turned_cast(transposed);
  const bool wide = at.whole(is_aligned(row, sizeof(uint2)));
  std::uint8_t* const first_line = row.codes + (at.row0 + at.row) * row.stride + at.col0 + at.col;
  std::uint32_t row_codes[kGroup];  // of the first four columns
#pragma unroll
  for (int c = 0; c < kGroup; c += 4) {
    std::uint32_t columns[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t turned[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 4 * half + i;
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = patch.row[r].value(c + j);
        const auto four = [&](const Cast& cast, float a, float b, float c2, float d) {
          return cast.four(cast.scaled(x[0], a), cast.scaled(x[1], b), cast.scaled(x[2], c2),
                           cast.scaled(x[3], d), at.position(r, c));
        };
        if constexpr (kTransposed) {
          turned[i] = four(turned_cast, turned_factors[c], turned_factors[c + 1],
                           turned_factors[c + 2], turned_factors[c + 3]);
        }
        if constexpr (kRow) {
          const float factor = row_factors[r];
          const std::uint32_t own = four(row_cast, factor, factor, factor, factor);
          if (c == 0) {
            row_codes[r] = own;
          } else {
            write_codes({row_codes[r], own}, wide, at.count(r), first_line + r * row.stride);
          }
        }
      }
      if constexpr (kTransposed) transpose_bytes(turned, columns[half]);
    }
    if constexpr (kTransposed) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes.piece(static_cast<unsigned>(at.col + c + i), threadIdx.x / kLanesAcross) = {
            columns[0][i], columns[1][i]};
      }
    }
  }
}

template <class Place>
__device__ void write_transposed_codes(const BlockOperand& operand, const Place& at,
                                       const TransposedCodes& transposed) {
  constexpr unsigned kPairs = kSide / sizeof(uint4);
  const bool aligned = is_aligned(operand, sizeof(uint4));
  const unsigned p = threadIdx.x % kPairs;
  const std::int64_t row = at.row0 + p * static_cast<unsigned>(sizeof(uint4));
  const int count = static_cast<int>(
      max(std::int64_t{0}, min(at.rows - row, static_cast<std::int64_t>(sizeof(uint4)))));
#pragma unroll
  for (unsigned i = 0; i < kSide; i += kBlockThreads / kPairs) {
    const unsigned col = i + threadIdx.x / kPairs;
    if (!Place::kWhole && at.col0 + col >= at.cols) return;
    const uint4 codes = transposed.pair(col, p);
    std::uint8_t* line = operand.codes + (at.col0 + col) * operand.stride + row;
    if (Place::kWhole || (aligned && count == sizeof(uint4))) {
      *reinterpret_cast<uint4*>(line) = codes;
    } else {
      std::uint8_t bytes[sizeof(uint4)];
      std::memcpy(bytes, &codes, sizeof bytes);
#pragma unroll
      for (int b = 0; b < static_cast<int>(sizeof(uint4)); ++b) {
        if (b < count) line[b] = bytes[b];
      }
    }
  }
}

// --- kernel -------------------------------------------------------------------------------------

/// Returns the dynamic shared memory of a block.
__device__ inline uint4* block_memory() {
  extern __shared__ uint4 memory[];
  return memory;
}

/// A source of block_kernel whose elements lie in memory. Every source provides: `load`, which
/// fills the first of a thread's kPatches patches; `next`, which moves `at` to the next patch and
/// fills it; `store`, which writes a patch if the source's elements are an output themselves. A
/// source may use kShared bytes of block_memory(); once `load` has returned, the kernel uses the
/// begin of them for the transposed codes.
template <class T>
struct StoredBlocks {
  using Element = T;
  static constexpr int kPatches = 1;
  static constexpr int kShared = 0;
  static constexpr bool kHasSquares = true;
  /// Blocks on a multiprocessor; `row`: codes are written in the source's orientation too.
  static constexpr int blocks(bool row) { return sizeof(T) != 2 ? 2 : row ? 3 : 4; }
  Rows<T> rows;

  bool wide() const { return rows.wide; }
  template <class Place>
  __device__ void load(const Place& at, Patch<T>& patch) const {
    patch.load(rows, at);
  }
  template <class Place>
  __device__ void next(Place&, Patch<T>&) const {}
  template <class Place>
  __device__ void store(const Place&, const Patch<T>&) const {}
};

/// `rows` and `cols` describe the first patches; kWhole as in Place.
template <class Source, class Cast, bool kRow, bool kTransposed, bool kWhole, Tiles kTiles>
__global__ void __launch_bounds__(kBlockThreads, Source::blocks(kRow))
    block_kernel(const __grid_constant__ Source source, std::int64_t rows, std::int64_t cols,
                 const __grid_constant__ BlockOperand row,
                 const __grid_constant__ BlockOperand transposed, std::uint32_t* amax) {
  constexpr bool kOwnCodes = kTransposed && Source::kShared == 0;
  static_assert(Source::kShared == 0 || Source::kShared >= sizeof(TransposedCodes));
  __shared__ alignas(16) std::byte own_codes[kOwnCodes ? sizeof(TransposedCodes) : 16];
  auto& codes = *reinterpret_cast<TransposedCodes*>(
      Source::kShared > 0 ? static_cast<void*>(block_memory()) : own_codes);
  using RowMap = TileMap<false, kTiles>;
  using TurnedMap = TileMap<true, kTiles>;
  // Some warps find the scales of whole rows while others find those of columns.
  constexpr bool kRowsEarly = kTiles == Tiles::vectors;
  __shared__ alignas(16) std::uint32_t row_parts[kRow && !kRowsEarly ? RowMap::kParts : 4];
  __shared__ alignas(16) std::uint32_t turned_parts[kTransposed ? TurnedMap::kParts : 4];
  auto at = place_of_block<(kTransposed && !kRow), kWhole>(rows, cols);
  const RowMap row_map(row);
  const TurnedMap turned_map(transposed);
  const bool share_row = kRow && row_map.shared();
  const bool share_turned = kTransposed && turned_map.shared();

  Patch<typename Source::Element> patch;
  source.load(at, patch);
#pragma unroll 1
  for (int i = 0; i < Source::kPatches; ++i) {
    if (i > 0) {
      __syncthreads();  // all warps are done with the previous patch's shared memory
      source.next(at, patch);
    }
    source.store(at, patch);
    if (amax != nullptr) raise(amax, patch.amax());
    if (share_row) write_parts(row_map, patch, at, row_parts);
    if (share_turned) write_parts(turned_map, patch, at, turned_parts);
    RowFactors<kLanesAcross> early;
    if constexpr (kRowsEarly) early.measure(patch, at);
    if (share_row || share_turned) {
      __syncthreads();
      if (share_row) find_scales(row_map, row, at, row_parts);
      if (share_turned) find_scales(turned_map, transposed, at, turned_parts);
      if constexpr (kRowsEarly) early.find(row_map, row, at);
      __syncthreads();
    }
    float row_factors[kGroup], turned_factors[kGroup];
    if constexpr (kTransposed) {
      find_factors(turned_map, transposed, patch, at, turned_parts, turned_factors);
    }
    if constexpr (kRowsEarly) {
      early.gather(at.lane, row_factors);
    } else if constexpr (kRow) {
      find_factors(row_map, row, patch, at, row_parts, row_factors);
    }
    encode<Cast, kRow, kTransposed>(row, row_factors, transposed, turned_factors, patch, at, codes);
    if constexpr (kTransposed) {
      __syncthreads();
      write_transposed_codes(transposed, at, codes);
    }
  }
}

/// True if there is a kernel without bounds checks for complete blocks in both orientations. FP8 by
/// the conversion instruction has one, as it is most of what a training step quantizes.
template <class Source, class Cast>
inline constexpr bool kHasWhole = false;
template <class Source, Fp8Codec kCodec>
inline constexpr bool kHasWhole<Source, Fp8Cast<kCodec, false>> =
    sizeof(typename Source::Element) == sizeof(std::uint16_t);

inline Tiles tiles_of(const BlockOperand& row, const BlockOperand& transposed) {
  if (row.factors != nullptr || transposed.factors != nullptr) return Tiles::any;
  const auto are = [&](int short_side) {
    return row.row_shift == short_side && row.col_shift == 7 && transposed.row_shift == 7 &&
           transposed.col_shift == short_side;
  };
  return are(0) ? Tiles::vectors : are(7) ? Tiles::squares : Tiles::any;
}

template <class Cast, bool kRow, bool kTransposed, bool kWhole, Tiles kTiles, class Source>
void launch_block_kernel(Context& context, const Source& source, const TensorView& shape,
                         const BlockOperand& row, const BlockOperand& transposed,
                         std::uint32_t* amax) {
  constexpr auto kKernel = block_kernel<Source, Cast, kRow, kTransposed, kWhole, kTiles>;
  if constexpr (Source::kShared > 0) {
    check(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Source::kShared),
        "quantize: shared memory of blocks");
  }
  kKernel<<<blocks_of(shape), kBlockThreads, Source::kShared, context.stream()>>>(
      source, shape.rows, shape.cols, row, transposed, amax);
  check_launch("quantize: blocks");
}

/// Runs block_kernel over `shape`, the shape of the first patches; Cast as by with_cast.
template <class Cast, bool kRow, bool kTransposed, class Source>
void launch_blocks(Context& context, const Source& source, const TensorView& shape,
                   const BlockOperand& row, const BlockOperand& transposed, std::uint32_t* amax) {
  const auto launch = [&]<bool kWhole, Tiles kTiles>() {
    launch_block_kernel<Cast, kRow, kTransposed, kWhole, kTiles>(context, source, shape, row,
                                                                 transposed, amax);
  };
  if constexpr (kRow && kTransposed && kHasWhole<Source, Cast>) {
    if (shape.rows % kSide == 0 && shape.cols % kSide == 0 && source.wide() &&
        is_aligned(row, sizeof(uint4)) && is_aligned(transposed, sizeof(uint4))) {
      const Tiles tiles = tiles_of(row, transposed);
      if (tiles == Tiles::vectors) return launch.template operator()<true, Tiles::vectors>();
      if constexpr (Source::kHasSquares) {
        if (tiles == Tiles::squares) return launch.template operator()<true, Tiles::squares>();
      }
      return launch.template operator()<true, Tiles::any>();
    }
  }
  launch.template operator()<false, Tiles::any>();
}

}  // namespace fp8lab::cuda
