// The kernel of quantization in one reading of the source: 128 x 128 elements stay in registers
// from the amax of their tiles to their codes. A source reads its elements, or makes them of what
// it reads (quantize_fused_blocks.cu); it may have several patches for a thread, one after another.
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
//        |      given          of the tensor, or of each line of the operand
//        |      inside a warp  1xG and squares up to 16: shuffles; the lanes share out the scales
//        |      across warps   parts of columns and squares from 32 on, through row_parts and
//        |                     turned_parts (8 warps x 132 maxima): write_parts
//        |                     barrier    find_scales, a thread a tile: scale to global memory,
//        |                                factor in the place of the first part
//        |                     barrier    shared_factors
//        v
//   codes
//        +--> as they lie: 8 bytes for each row of a patch, whole 128-byte lines for a warp
//        +--> transposed: 4 x 4 bytes turned in registers, to TransposedCodes (16 KiB)
//               barrier        16-byte pieces of the operand's rows to global memory
//
// With both orientations: transposed codes to shared memory, codes as they lie, barrier, pieces.
#pragma once

#include "kernels/quantize/quantize_group.cuh"

namespace fp8lab::cuda {

inline constexpr int kSide = 128;
inline constexpr int kBlockThreads = 256;
inline constexpr int kLanesAcross = 16, kLanesDown = 2;
inline constexpr int kWarps = kBlockThreads / kWarpSize;
inline constexpr int kWarpRows = kLanesDown * kGroup;
static_assert(kLanesAcross * kLanesDown == kWarpSize);
static_assert(kWarpRows * kWarps == kSide && kLanesAcross * kGroup == kSide);

/// Blocks that cover a matrix.
inline unsigned blocks_of(const TensorView& source) {
  return static_cast<unsigned>((source.rows + kSide - 1) / kSide *
                               ((source.cols + kSide - 1) / kSide));
}

/// Where a thread's elements lie in its block, and the block in the source.
struct Place {
  std::int64_t rows, cols;  ///< of the source
  std::int64_t row0, col0;  ///< of the block
  int lane, warp, row, col;

  /// Block `across` of the row of blocks `down`.
  __device__ Place(std::int64_t source_rows, std::int64_t source_cols, unsigned down,
                   unsigned across)
      : rows(source_rows), cols(source_cols) {
    row0 = std::int64_t{down} * kSide;
    col0 = std::int64_t{across} * kSide;
    lane = lane_id();
    warp = warp_id();
    row = warp * kWarpRows + lane / kLanesAcross * kGroup;
    col = lane % kLanesAcross * kGroup;
  }
  __device__ bool whole() const { return row0 + kSide <= rows && col0 + kSide <= cols; }
  /// Columns of the thread inside the source.
  __device__ int count() const {
    return static_cast<int>(max(std::int64_t{0}, min(cols - col0 - col, std::int64_t{kGroup})));
  }
  /// Of element (r, c) of the thread's in a source that does not move_right.
  __device__ std::int64_t position(int r, int c) const {
    return (row0 + row + r) * cols + col0 + col + c;
  }
  __device__ bool contains(int block_row, int block_col) const {
    return row0 + block_row < rows && col0 + block_col < cols;
  }
  /// Moves on by `width` columns in a source that ends `width` columns later. Keeps the compiler
  /// from carrying there what it made of the place, in registers that it does not have.
  __device__ void move_right(std::int64_t width) {
    col0 += width;
    cols += width;
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(row), "+r"(col));
  }
};

/// Blocks follow each other across the source, or down it where only its transpose is written: the
/// codes that are written at one time then lie side by side.
template <bool kDown>
__device__ Place place_of_block(std::int64_t rows, std::int64_t cols) {
  const auto count = static_cast<unsigned>(((kDown ? rows : cols) + kSide - 1) / kSide);
  const unsigned outer = blockIdx.x / count, inner = blockIdx.x % count;
  return {rows, cols, kDown ? inner : outer, kDown ? outer : inner};
}

/// The thread's 8 x 8 elements, zeros outside the source.
template <class T>
struct Patch {
  Group<T> row[kGroup];

  __device__ void load(const Rows<T>& source, const Place& at) {
    const T* first = source.at(at.row0 + at.row, at.col0 + at.col);
    if (source.wide && at.whole()) {
#pragma unroll
      for (int r = 0; r < kGroup; ++r) row[r].load(first + r * source.stride);
      return;
    }
    const int count = at.count();
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      const bool inside = at.row0 + at.row + r < at.rows;
      row[r].load_some(first + r * source.stride, inside ? count : 0);
    }
  }
  /// Keeps the compiler from carrying what it made of the elements, twice as many registers, from
  /// one orientation to the other.
  __device__ void forget_results() {
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
#pragma unroll
      for (int i = 0; i < Group<T>::kWords; ++i) asm volatile("" : "+r"(row[r].words[i]));
    }
  }
  /// Largest magnitude of each column.
  __device__ Magnitudes<T> columns() const {
    Magnitudes<T> largest(row[0]);
#pragma unroll
    for (int r = 1; r < kGroup; ++r) largest.raise(Magnitudes<T>(row[r]));
    return largest;
  }
  __device__ std::uint32_t amax() const { return columns().amax(); }
  /// FP32 bits of the largest magnitude of each row, and of each column.
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

/// How the tiles of one orientation lie in a block. kTransposed: a tile is a part of a column or a
/// square, else a part of a row or a square, of 16 to 128 elements of the source a side.
template <bool kTransposed>
struct TileMap {
  int row_shift, col_shift;

  __device__ explicit TileMap(const BlockOperand& operand)
      : row_shift(operand.row_shift), col_shift(operand.col_shift) {}
  __device__ bool square() const { return row_shift == col_shift; }
  __device__ bool in_warp() const { return square() ? 1 << row_shift <= kWarpRows : !kTransposed; }

  // Of tiles that warps share, each warp contributes a part to the amax: of columns a line of kSide
  // parts, of squares one part for each width of them.
  static constexpr int kLine = kSide + 4;  ///< so that the parts of one column lie in other banks
  static constexpr int kParts = kWarps * kLine;

  __device__ int parts() const { return (1 << row_shift) / kWarpRows; }
  /// Number of tiles, and element (row, col) of the block where tile i begins: those of a column
  /// follow each other, so that neighbouring threads write neighbouring scales.
  __device__ int count() const { return kSide * kSide >> (row_shift + col_shift); }
  __device__ void start(int i, int& row, int& col) const {
    const int down_shift = 7 - row_shift;
    row = (i & ((1 << down_shift) - 1)) << row_shift;
    col = i >> down_shift << col_shift;
  }
  /// Part `index` of the tile of element (row, col).
  __device__ int part(int row, int col, int index) const {
    return ((row >> row_shift) * parts() + index) * kLine + (col >> col_shift);
  }
};

/// Writes the scale of the tile in which element (row, col) of the block lies.
template <bool kTransposed>
__device__ void write_scale(const BlockOperand& operand, const Place& at, int row, int col,
                            float scale) {
  const std::int64_t i = (at.row0 + row) >> operand.row_shift;
  const std::int64_t j = (at.col0 + col) >> operand.col_shift;
  operand.scales[kTransposed ? j * operand.scale_stride + i : i * operand.scale_stride + j] = scale;
}

// --- tiles inside a warp ------------------------------------------------------------------------

/// Factors of the thread's rows, whose tiles reach over kLanes lanes; writes their scales.
template <int kLanes, class T>
__device__ void row_factors(const BlockOperand& operand, const Patch<T>& patch, const Place& at,
                            float (&factors)[kGroup]) {
  using Lanes = Spread<kGroup, kLanes, 1>;
  std::uint32_t largest[kGroup];
  patch.row_amax(largest);
  Lanes::reduce(at.lane, largest);
  const int col = at.col - Lanes::place(at.lane) * kGroup;  // where the tile begins
  float kept[Lanes::kKept];
#pragma unroll
  for (int i = 0; i < Lanes::kKept; ++i) {
    const numerics::TileScale scale = scale_of_tile(operand, largest[i]);
    kept[i] = factor_of(operand, scale);
    const int row = at.row + Lanes::first(at.lane) + i;
    if (at.contains(row, col)) write_scale<false>(operand, at, row, col, scale.decode);
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) factors[i] = Lanes::gather(at.lane, kept, i);
}

/// The same for a square of `lanes` x `lanes` patches.
template <bool kTransposed, class T>
__device__ void square_factors(const BlockOperand& operand, const Patch<T>& patch, const Place& at,
                               int lanes, float (&factors)[kGroup]) {
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
    write_scale<kTransposed>(operand, at, at.row, at.col, scale.decode);
  }
}

template <bool kTransposed, class T>
__device__ void warp_factors(const TileMap<kTransposed>& map, const BlockOperand& operand,
                             const Patch<T>& patch, const Place& at, float (&factors)[kGroup]) {
  if (map.square()) {
    square_factors<kTransposed>(operand, patch, at, (1 << map.row_shift) / kGroup, factors);
  } else if constexpr (!kTransposed) {
    switch (map.col_shift) {
      case 4: return row_factors<2>(operand, patch, at, factors);
      case 5: return row_factors<4>(operand, patch, at, factors);
      case 6: return row_factors<8>(operand, patch, at, factors);
      default: return row_factors<16>(operand, patch, at, factors);
    }
  }
}

// --- tiles of several warps ---------------------------------------------------------------------

/// line[c] = largest magnitude of the warp's part of column c of the block.
template <class T>
__device__ void write_column_parts(const Patch<T>& patch, const Place& at, std::uint32_t* line) {
  using Lanes = Spread<kGroup, kLanesDown, kLanesAcross>;
  static_assert(Lanes::kKept == 4);
  std::uint32_t largest[kGroup];
  patch.column_amax(largest);
  Lanes::reduce(at.lane, largest);
  *reinterpret_cast<uint4*>(line + at.col + Lanes::first(at.lane)) = {largest[0], largest[1],
                                                                      largest[2], largest[3]};
}

template <bool kTransposed, class T>
__device__ void write_parts(const TileMap<kTransposed>& map, const Patch<T>& patch, const Place& at,
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

/// Scales of the block's tiles; one thread a tile, from the first thread on or from the last, so
/// that two orientations with few tiles keep different warps busy. A tile's factor takes the place
/// of its first part.
template <bool kTransposed>
__device__ void find_scales(const TileMap<kTransposed>& map, const BlockOperand& operand,
                            const Place& at, std::uint32_t* parts) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = kTransposed ? thread : kBlockThreads - 1 - thread; i < map.count();
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
    write_scale<kTransposed>(operand, at, row, col, scale.decode);
  }
}

/// Factors of the thread's lines, after find_scales.
template <bool kTransposed>
__device__ void shared_factors(const TileMap<kTransposed>& map, const Place& at,
                               const std::uint32_t* parts, float (&factors)[kGroup]) {
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

/// Factors given for each line of the operand, or one for all.
template <bool kTransposed>
__device__ void given_factors(const BlockOperand& operand, const Place& at,
                              float (&factors)[kGroup]) {
  const std::int64_t first = kTransposed ? at.col0 + at.col : at.row0 + at.row;
  const std::int64_t last = (kTransposed ? at.cols : at.rows) - 1;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    factors[i] = operand.factors[min(first + i, last) * operand.factor_step];
  }
}

template <bool kTransposed, class T>
__device__ void find_factors(const TileMap<kTransposed>& map, const BlockOperand& operand,
                             const Patch<T>& patch, const Place& at, const std::uint32_t* parts,
                             float (&factors)[kGroup]) {
  if (operand.factors != nullptr) {
    given_factors<kTransposed>(operand, at, factors);
  } else if (map.in_warp()) {
    warp_factors(map, operand, patch, at, factors);
  } else {
    shared_factors(map, at, parts, factors);
  }
}

// --- codes --------------------------------------------------------------------------------------

template <class Cast, class T>
__device__ void write_row_codes(const BlockOperand& operand, const Patch<T>& patch, const Place& at,
                                const float (&factors)[kGroup]) {
  const Cast cast(operand);
  const bool wide = is_aligned(operand, sizeof(uint2)) && at.whole();
  std::uint8_t* line = operand.codes + (at.row0 + at.row) * operand.stride + at.col0 + at.col;
#pragma unroll
  for (int r = 0; r < kGroup; ++r, line += operand.stride) {
    const int count = at.row0 + at.row + r < at.rows ? at.count() : 0;
    write_group(cast, patch.row[r], factors[r], wide, count, at.position(r, 0), line);
  }
}

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

/// The transposed codes of a block. Row c (a column of the source) holds pieces of 8 codes; piece p
/// stands at p ^ c / 8, which spreads a column of pieces over all banks and keeps the pieces of a
/// pair together.
struct TransposedCodes {
  static constexpr int kPieces = kSide / kGroup;
  uint2 pieces[kSide * kPieces];

  __device__ uint2& piece(int col, int p) { return pieces[col * kPieces + (p ^ col / kGroup)]; }
  /// Codes [16 p, 16 p + 16) of a row.
  __device__ uint4 pair(int col, int p) const {
    const int at = 2 * p ^ col / kGroup;
    const uint4 both = reinterpret_cast<const uint4*>(pieces)[(col * kPieces + at) / 2];
    return at % 2 == 0 ? both : uint4{both.z, both.w, both.x, both.y};
  }
};

template <class Cast, class T>
__device__ void turn_codes(const BlockOperand& operand, const Patch<T>& patch, const Place& at,
                           const float (&factors)[kGroup], TransposedCodes& transposed) {
  const Cast cast(operand);
#pragma unroll
  for (int c = 0; c < kGroup; c += 4) {
    std::uint32_t columns[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Group<T>& x = patch.row[4 * half + i];
        rows[i] = cast.four(
            cast.scaled(x.value(c), factors[c]), cast.scaled(x.value(c + 1), factors[c + 1]),
            cast.scaled(x.value(c + 2), factors[c + 2]),
            cast.scaled(x.value(c + 3), factors[c + 3]), at.position(4 * half + i, c));
      }
      transpose_bytes(rows, columns[half]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      transposed.piece(at.col + c + i, at.row / kGroup) = {columns[0][i], columns[1][i]};
    }
  }
}

__device__ inline void write_transposed_codes(const BlockOperand& operand, const Place& at,
                                              const TransposedCodes& transposed) {
  constexpr int kPairs = kSide / static_cast<int>(sizeof(uint4));
  const bool aligned = is_aligned(operand, sizeof(uint4));
  const int p = static_cast<int>(threadIdx.x) % kPairs;
  const std::int64_t row = at.row0 + p * static_cast<int>(sizeof(uint4));
  const int count = static_cast<int>(
      max(std::int64_t{0}, min(at.rows - row, static_cast<std::int64_t>(sizeof(uint4)))));
#pragma unroll
  for (int i = 0; i < kSide; i += kBlockThreads / kPairs) {
    const int col = i + static_cast<int>(threadIdx.x) / kPairs;
    if (at.col0 + col >= at.cols) return;
    const uint4 codes = transposed.pair(col, p);
    std::uint8_t* line = operand.codes + (at.col0 + col) * operand.stride + row;
    if (aligned && count == sizeof(uint4)) {
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

/// Dynamic shared memory of a block.
__device__ inline uint4* block_memory() {
  extern __shared__ uint4 memory[];
  return memory;
}

/// Elements as they lie in memory. What block_kernel asks of a source: `load` makes the first of a
/// thread's kPatches patches; `next` moves `at` on and makes the next one; `store` writes a patch
/// where the source's elements are wanted themselves. It may use kShared bytes of block_memory(),
/// of which the kernel takes the first for the transposed codes once `load` has returned.
template <class T>
struct StoredBlocks {
  using Element = T;
  static constexpr int kPatches = 1;
  static constexpr int kShared = 0;
  /// Blocks on a multiprocessor, with codes as the elements lie (`row`) or without.
  static constexpr int blocks(bool row) { return sizeof(T) != 2 ? 2 : row ? 3 : 4; }
  Rows<T> rows;

  __device__ void load(const Place& at, Patch<T>& patch) const { patch.load(rows, at); }
  __device__ void next(Place&, Patch<T>&) const {}
  __device__ void store(const Place&, const Patch<T>&) const {}
};

/// `rows` and `cols` are those of the first patches.
template <class Source, class Cast, bool kRow, bool kTransposed>
__global__ void __launch_bounds__(kBlockThreads, Source::blocks(kRow))
    block_kernel(const __grid_constant__ Source source, std::int64_t rows, std::int64_t cols,
                 const __grid_constant__ BlockOperand row,
                 const __grid_constant__ BlockOperand transposed, std::uint32_t* amax) {
  constexpr bool kOwnCodes = kTransposed && Source::kShared == 0;
  static_assert(Source::kShared == 0 || Source::kShared >= sizeof(TransposedCodes));
  __shared__ alignas(16) std::byte own_codes[kOwnCodes ? sizeof(TransposedCodes) : 16];
  auto& codes = *reinterpret_cast<TransposedCodes*>(
      Source::kShared > 0 ? static_cast<void*>(block_memory()) : own_codes);
  __shared__ alignas(16) std::uint32_t row_parts[kRow ? TileMap<false>::kParts : 4];
  __shared__ alignas(16) std::uint32_t turned_parts[kTransposed ? TileMap<true>::kParts : 4];
  Place at = place_of_block < kTransposed && !kRow > (rows, cols);
  const TileMap<false> row_map(row);
  const TileMap<true> turned_map(transposed);
  const bool share_row = kRow && row.factors == nullptr && !row_map.in_warp();
  const bool share_turned = kTransposed && transposed.factors == nullptr && !turned_map.in_warp();

  Patch<typename Source::Element> patch;
  source.load(at, patch);
#pragma unroll 1
  for (int i = 0; i < Source::kPatches; ++i) {
    if (i > 0) {
      __syncthreads();  // the shared memory of the patch before
      source.next(at, patch);
    }
    source.store(at, patch);
    if (amax != nullptr) raise(amax, patch.amax());
    if (share_row) write_parts(row_map, patch, at, row_parts);
    if (share_turned) write_parts(turned_map, patch, at, turned_parts);
    if (share_row || share_turned) {
      __syncthreads();
      if (share_row) find_scales(row_map, row, at, row_parts);
      if (share_turned) find_scales(turned_map, transposed, at, turned_parts);
      __syncthreads();
    }
    float factors[kGroup];
    if constexpr (kTransposed) {
      find_factors(turned_map, transposed, patch, at, turned_parts, factors);
      turn_codes<Cast>(transposed, patch, at, factors, codes);
      patch.forget_results();
    }
    if constexpr (kRow) {
      find_factors(row_map, row, patch, at, row_parts, factors);
      write_row_codes<Cast>(row, patch, at, factors);
    }
    if constexpr (kTransposed) {
      __syncthreads();
      write_transposed_codes(transposed, at, codes);
    }
  }
}

/// Runs block_kernel over `shape`, that of the first patches; Cast as by with_cast.
template <class Cast, bool kRow, bool kTransposed, class Source>
void launch_blocks(Context& context, const Source& source, const TensorView& shape,
                   const BlockOperand& row, const BlockOperand& transposed, std::uint32_t* amax) {
  constexpr auto kKernel = block_kernel<Source, Cast, kRow, kTransposed>;
  if constexpr (Source::kShared > 0) {
    check(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Source::kShared),
        "quantize: shared memory of blocks");
  }
  kKernel<<<blocks_of(shape), kBlockThreads, Source::kShared, context.stream()>>>(
      source, shape.rows, shape.cols, row, transposed, amax);
  check_launch("quantize: blocks");
}

}  // namespace fp8lab::cuda
