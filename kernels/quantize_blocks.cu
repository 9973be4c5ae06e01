#include "kernels/quantize_blocks.hpp"

#include <cuda_fp8.h>

#include <bit>

#include "emulation/numerics/scaling.hpp"
#include "kernels/rows.cuh"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::TileScale;

// A block of 256 threads holds 128 x 128 elements: each thread 8 rows of 8 columns (kGroup).
// Lanes 0..15 of a warp lie side by side, lanes 16..31 below them, and warps below each other.
constexpr int kSide = 128;
constexpr int kBlockThreads = 256;
constexpr int kAcross = kSide / kGroup;  ///< threads side by side
constexpr int kWarps = kBlockThreads / 32;
constexpr int kWarpRows = kSide / kWarps;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

enum class Codec { e4m3, e5m2 };

/// The FP32 operation before the cast, and the cast.
template <Codec kCodec, bool kDivide>
struct Cast {
  static __device__ float scaled(float x, float factor) {
    return kDivide ? x / factor : x * factor;
  }
  static __device__ std::uint32_t pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE,
                                    kCodec == Codec::e4m3 ? __NV_E4M3 : __NV_E5M2);
  }
  /// Codes of four values, the first in the low byte.
  static __device__ std::uint32_t four(float a, float b, float c, float d) {
    return pair(a, b) | pair(c, d) << 16;
  }
};

/// kGroup consecutive elements of a row as loaded.
template <class T>
struct Group {
  static constexpr int kWords = kGroup * sizeof(T) / sizeof(std::uint32_t);
  std::uint32_t words[kWords];

  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 part = *reinterpret_cast<const uint4*>(source + i * kGroup / kWords);
      words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
    }
  }
  /// `count` elements, zeros after them.
  __device__ void load_some(const T* source, int count) {
    T values[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[i] = i < count ? source[i] : T{};
    std::memcpy(words, values, sizeof words);
  }
  __device__ float value(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return bits_float(words[i]);
    } else {  // numerics::from_bf16
      return bits_float(i % 2 != 0 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16);
    }
  }
  /// Bits of |value|; those of a NaN are above those of infinity.
  __device__ std::uint32_t magnitude(int i) const { return float_bits(value(i)) & 0x7FFFFFFFu; }
  __device__ std::uint32_t amax() const {
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) largest = max(largest, magnitude(i));
    return largest;
  }
};

/// Where a thread's elements lie in its block, and the block in the source.
struct Place {
  std::int64_t rows, cols;  ///< of the source
  std::int64_t row0, col0;  ///< of the block
  int lane, warp, row, col;

  __device__ Place(std::int64_t source_rows, std::int64_t source_cols)
      : rows(source_rows), cols(source_cols) {
    const auto across = static_cast<unsigned>((cols + kSide - 1) / kSide);
    row0 = std::int64_t{blockIdx.x / across} * kSide;
    col0 = std::int64_t{blockIdx.x % across} * kSide;
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % 32;
    warp = thread / 32;
    row = thread / kAcross * kGroup;
    col = thread % kAcross * kGroup;
  }
  __device__ bool whole() const { return row0 + kSide <= rows && col0 + kSide <= cols; }
  /// Columns of the thread inside the source.
  __device__ int count() const {
    return static_cast<int>(max(std::int64_t{0}, min(cols - col0 - col, std::int64_t{kGroup})));
  }
};

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
  __device__ std::uint32_t column_amax(int c) const {
    std::uint32_t largest = 0;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) largest = max(largest, row[r].magnitude(c));
    return largest;
  }
  __device__ std::uint32_t amax() const {
    std::uint32_t largest = 0;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) largest = max(largest, row[r].amax());
    return largest;
  }
};

__device__ std::uint32_t max_with(std::uint32_t value, int other_lane) {
  return max(value, __shfl_xor_sync(kAllLanes, value, other_lane));
}

/// Shared memory of one orientation: first amaxes of parts of tiles, then, in the place of each
/// tile's first part, its factor.
///
/// Parts stand in rows of `width` tiles across the block. Tiles of one row have one part; of higher
/// ones each warp, that is each kWarpRows rows, contributes one.
struct TileMap {
  static constexpr int kParts = kSide * kSide / 16;
  int row_shift, col_shift;

  __device__ int width() const { return kSide >> col_shift; }
  __device__ int parts() const { return row_shift == 0 ? 1 : (1 << row_shift) / kWarpRows; }
  /// First part of the tile of element (row, col) of the block.
  __device__ int first(int row, int col) const {
    return (row >> row_shift) * parts() * width() + (col >> col_shift);
  }
};

/// Writes the parts of this thread. kTurned: tiles are 16 or more rows high, and one column or as
/// many columns wide; else one row or as many rows high, and 16 or more columns wide.
template <bool kTurned, class T>
__device__ void write_parts(const TileMap& map, const Patch<T>& patch, const Place& at,
                            std::uint32_t* parts) {
  const int lanes = (1 << map.col_shift) / kGroup;
  if (!kTurned && map.row_shift == 0) {
    std::uint32_t largest[kGroup];
#pragma unroll
    for (int r = 0; r < kGroup; ++r) largest[r] = patch.row[r].amax();
    for (int other = 1; other < lanes; other *= 2) {
#pragma unroll
      for (int r = 0; r < kGroup; ++r) largest[r] = max_with(largest[r], other);
    }
    if (at.lane % lanes != 0) return;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) parts[map.first(at.row + r, at.col)] = largest[r];
  } else if (kTurned && map.col_shift == 0) {
    std::uint32_t largest[kGroup];
#pragma unroll
    for (int c = 0; c < kGroup; ++c) largest[c] = max_with(patch.column_amax(c), kAcross);
    if (at.lane >= kAcross) return;
    auto* line = reinterpret_cast<uint4*>(parts + at.warp * kSide + at.col);
    line[0] = {largest[0], largest[1], largest[2], largest[3]};
    line[1] = {largest[4], largest[5], largest[6], largest[7]};
  } else {
    std::uint32_t largest = max_with(patch.amax(), kAcross);
    for (int other = 1; other < lanes; other *= 2) largest = max_with(largest, other);
    if (at.lane >= kAcross || at.lane % lanes != 0) return;
    parts[at.warp * map.width() + (at.col >> map.col_shift)] = largest;
  }
}

/// Scales of the block's tiles; one thread a tile, from the first thread on or from the last, so
/// that two orientations with few tiles keep different warps busy.
template <bool kTurned>
__device__ void find_scales(const TileMap& map, const BlockOperand& operand, const Place& at,
                            std::uint32_t* parts) {
  const int width = map.width();
  const int count = (kSide >> map.row_shift) * width;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = kTurned ? kBlockThreads - 1 - thread : thread; i < count; i += kBlockThreads) {
    const int row = i / width << map.row_shift, col = i % width << map.col_shift;
    if (at.row0 + row >= at.rows || at.col0 + col >= at.cols) continue;
    const int first = map.first(row, col);
    std::uint32_t largest = parts[first];
    for (int part = 1; part < map.parts(); ++part) {
      largest = max(largest, parts[first + part * width]);
    }
    const TileScale scale = numerics::tile_scale(operand.rule, operand.format, bits_float(largest));
    parts[first] = float_bits(operand.rule.divides() ? scale.decode : scale.multiplier);
    const std::int64_t i_row = (at.row0 + row) >> map.row_shift;
    const std::int64_t i_col = (at.col0 + col) >> map.col_shift;
    operand.scales[kTurned ? i_col * operand.scale_stride + i_row
                           : i_row * operand.scale_stride + i_col] = scale.decode;
  }
}

/// Factors of the thread's rows, or with kTurned of its columns.
template <bool kTurned>
__device__ void read_factors(const TileMap& map, const BlockOperand& operand, const Place& at,
                             const std::uint32_t* parts, float (&factors)[kGroup]) {
  if (operand.factors != nullptr) {
    const std::int64_t first = kTurned ? at.col0 + at.col : at.row0 + at.row;
    const std::int64_t last = (kTurned ? at.cols : at.rows) - 1;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      factors[i] = operand.factors[min(first + i, last) * operand.factor_step];
    }
  } else if (kTurned && map.col_shift == 0) {
    const auto* line = reinterpret_cast<const float4*>(parts + map.first(at.row, at.col));
    const float4 low = line[0], high = line[1];
    factors[0] = low.x, factors[1] = low.y, factors[2] = low.z, factors[3] = low.w;
    factors[4] = high.x, factors[5] = high.y, factors[6] = high.z, factors[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      factors[i] = bits_float(parts[map.first(at.row + (kTurned ? 0 : i), at.col)]);
    }
  }
}

/// True when pieces of `bytes` codes lie on their own multiples in every row.
__device__ bool is_aligned(const BlockOperand& operand, int bytes) {
  return (reinterpret_cast<std::uintptr_t>(operand.codes) |
          static_cast<std::uintptr_t>(operand.stride)) %
             static_cast<unsigned>(bytes) ==
         0;
}

/// Writes the first `count` of the eight codes of a group; `wide`: all of them at once.
template <class Cast, class T>
__device__ void write_group(const Group<T>& group, float factor, bool wide, int count,
                            std::uint8_t* line) {
  float x[kGroup];
#pragma unroll
  for (int c = 0; c < kGroup; ++c) x[c] = Cast::scaled(group.value(c), factor);
  const uint2 codes{Cast::four(x[0], x[1], x[2], x[3]), Cast::four(x[4], x[5], x[6], x[7])};
  if (wide) {
    *reinterpret_cast<uint2*>(line) = codes;
    return;
  }
  for (int c = 0; c < count; ++c) {
    line[c] = static_cast<std::uint8_t>((c < 4 ? codes.x : codes.y) >> c % 4 * 8);
  }
}

template <class Cast, class T>
__device__ void write_row_codes(const BlockOperand& operand, const Patch<T>& patch, const Place& at,
                                const float (&factors)[kGroup]) {
  const bool wide = is_aligned(operand, sizeof(uint2)) && at.whole();
  std::uint8_t* line = operand.codes + (at.row0 + at.row) * operand.stride + at.col0 + at.col;
#pragma unroll
  for (int r = 0; r < kGroup; ++r, line += operand.stride) {
    const int count = at.row0 + at.row + r < at.rows ? at.count() : 0;
    write_group<Cast>(patch.row[r], factors[r], wide, count, line);
  }
}

/// columns[j], byte i = rows[i], byte j.
__device__ void transpose_bytes(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
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
struct Turned {
  uint2 pieces[kSide * kAcross];
  __device__ uint2& piece(int col, int p) { return pieces[col * kAcross + (p ^ col / kGroup)]; }
  /// Codes [16 p, 16 p + 16) of a row.
  __device__ uint4 pair(int col, int p) const {
    const int at = 2 * p ^ col / kGroup;
    const uint4 both = reinterpret_cast<const uint4*>(pieces)[(col * kAcross + at) / 2];
    return at % 2 == 0 ? both : uint4{both.z, both.w, both.x, both.y};
  }
};

template <class Cast, class T>
__device__ void turn_codes(const Patch<T>& patch, const Place& at, const float (&factors)[kGroup],
                           Turned& turned) {
#pragma unroll
  for (int c = 0; c < kGroup; c += 4) {
    std::uint32_t columns[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Group<T>& x = patch.row[4 * half + i];
        rows[i] = Cast::four(Cast::scaled(x.value(c), factors[c]),
                             Cast::scaled(x.value(c + 1), factors[c + 1]),
                             Cast::scaled(x.value(c + 2), factors[c + 2]),
                             Cast::scaled(x.value(c + 3), factors[c + 3]));
      }
      transpose_bytes(rows, columns[half]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      turned.piece(at.col + c + i, at.row / kGroup) = {columns[0][i], columns[1][i]};
    }
  }
}

__device__ void write_turned_codes(const BlockOperand& operand, const Place& at,
                                   const Turned& turned) {
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
    const uint4 codes = turned.pair(col, p);
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

/// Raises *amax; a block whose maximum is not above what is there leaves the atomic out.
__device__ void raise(std::uint32_t* amax, std::uint32_t largest) {
  __shared__ std::uint32_t of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  largest = __reduce_max_sync(kAllLanes, lane < warps ? of_warp[lane] : 0);
  if (lane == 0 && largest > *static_cast<volatile std::uint32_t*>(amax)) atomicMax(amax, largest);
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 3)
    amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, std::uint32_t* amax) {
  Patch<T> patch;
  patch.load(source, Place(rows, cols));
  raise(amax, patch.amax());
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 3)
    column_amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, std::uint32_t* amax) {
  __shared__ alignas(16) std::uint32_t parts[TileMap::kParts];
  const Place at(rows, cols);
  Patch<T> patch;
  patch.load(source, at);
  write_parts<true>(TileMap{7, 0}, patch, at, parts);
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col >= kSide || at.col0 + col >= cols) return;
  std::uint32_t largest = 0;
  for (int warp = 0; warp < kWarps; ++warp) largest = max(largest, parts[warp * kSide + col]);
  if (largest != 0) atomicMax(&amax[at.col0 + col], largest);
}

template <class T, class Cast, bool kRow, bool kTurned>
__global__ void __launch_bounds__(kBlockThreads, sizeof(T) != 2    ? 2
                                                 : kRow && kTurned ? 3
                                                                   : 4)
    block_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols,
                 const __grid_constant__ BlockOperand row,
                 const __grid_constant__ BlockOperand turned, std::uint32_t* amax) {
  __shared__ alignas(16) std::uint32_t row_parts[kRow ? TileMap::kParts : 1];
  __shared__ alignas(16) std::uint32_t turned_parts[kTurned ? TileMap::kParts : 4];
  const Place at(rows, cols);
  const TileMap row_map{row.row_shift, row.col_shift};
  const TileMap turned_map{turned.row_shift, turned.col_shift};
  const bool row_tiles = kRow && row.factors == nullptr;
  const bool turned_tiles = kTurned && turned.factors == nullptr;

  Patch<T> patch;
  patch.load(source, at);
  if (amax != nullptr) raise(amax, patch.amax());
  if (row_tiles) write_parts<false>(row_map, patch, at, row_parts);
  if (turned_tiles) write_parts<true>(turned_map, patch, at, turned_parts);
  if (row_tiles || turned_tiles) {
    __syncthreads();
    if (row_tiles) find_scales<false>(row_map, row, at, row_parts);
    if (turned_tiles) find_scales<true>(turned_map, turned, at, turned_parts);
    __syncthreads();
  }
  float factors[kGroup];
  if constexpr (kTurned) {
    __shared__ alignas(16) Turned codes;
    read_factors<true>(turned_map, turned, at, turned_parts, factors);
    turn_codes<Cast>(patch, at, factors, codes);
    __syncthreads();
    write_turned_codes(turned, at, codes);
  }
  if constexpr (kRow) {
    read_factors<false>(row_map, row, at, row_parts, factors);
    write_row_codes<Cast>(row, patch, at, factors);
  }
}

// --- one scale a row ----------------------------------------------------------------------------

/// One block a row. It is read twice, the second time from the cache.
template <class T, class Cast>
__global__ void row_kernel(Rows<T> source, std::int64_t cols,
                           const __grid_constant__ BlockOperand operand) {
  __shared__ std::uint32_t largest_shared;
  if (threadIdx.x == 0) largest_shared = 0;
  __syncthreads();
  const std::int64_t row = blockIdx.x;
  const auto load = [&](std::int64_t col) {
    Group<T> group;
    if (source.wide && col + kGroup <= cols) {
      group.load(source.at(row, col));
    } else {
      group.load_some(source.at(row, col), static_cast<int>(min(cols - col, std::int64_t{kGroup})));
    }
    return group;
  };
  const std::int64_t first = std::int64_t{threadIdx.x} * kGroup;
  const std::int64_t step = std::int64_t{blockDim.x} * kGroup;
  std::uint32_t largest = 0;
#pragma unroll 4
  for (std::int64_t col = first; col < cols; col += step) largest = max(largest, load(col).amax());
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % 32 == 0) atomicMax(&largest_shared, largest);
  __syncthreads();
  const TileScale scale =
      numerics::tile_scale(operand.rule, operand.format, bits_float(largest_shared));
  if (threadIdx.x == 0) operand.scales[row * operand.scale_stride] = scale.decode;
  const float factor = operand.rule.divides() ? scale.decode : scale.multiplier;
  const bool wide = is_aligned(operand, sizeof(uint2));
#pragma unroll 4
  for (std::int64_t col = first; col < cols; col += step) {
    const auto count = static_cast<int>(min(cols - col, std::int64_t{kGroup}));
    write_group<Cast>(load(col), factor, wide && count == kGroup, count,
                      operand.codes + row * operand.stride + col);
  }
}

// --- host ---------------------------------------------------------------------------------------

unsigned blocks_of(const TensorView& source) {
  return static_cast<unsigned>((source.rows + kSide - 1) / kSide *
                               ((source.cols + kSide - 1) / kSide));
}

bool is_block_extent(std::int64_t extent) {
  return extent >= 16 && extent <= kSide && std::has_single_bit(static_cast<std::uint64_t>(extent));
}

/// Calls launch(rows of the source, Cast) with the types that fit.
template <class Launch>
void with_cast(const TensorView& source, const numerics::FormatSpec& format, bool divide,
               const Launch& launch) {
  with_rows(
      [&](const auto& rows) {
        if (format == numerics::kE4M3) {
          divide ? launch(rows, Cast<Codec::e4m3, true>{})
                 : launch(rows, Cast<Codec::e4m3, false>{});
        } else {
          divide ? launch(rows, Cast<Codec::e5m2, true>{})
                 : launch(rows, Cast<Codec::e5m2, false>{});
        }
      },
      source);
}

}  // namespace

bool has_instruction(const QuantSpec& spec) {
  return (spec.format == numerics::kE4M3 || spec.format == numerics::kE5M2) &&
         spec.rounding == numerics::Rounding::nearest &&
         spec.overflow == numerics::Overflow::saturate;
}

bool has_block_tiles(const QuantSpec& spec) {
  const TileShape& tile = spec.tile;
  return has_instruction(spec) && spec.scale_source == ScaleSource::current &&
         spec.scale.format != numerics::ScaleFormat::nv_two_level && is_block_extent(tile.cols) &&
         (tile.rows == 1 || tile.rows == tile.cols);
}

bool has_row_scales(const QuantSpec& spec) {
  return has_instruction(spec) && spec.scale_source == ScaleSource::current &&
         spec.scale.format != numerics::ScaleFormat::nv_two_level && spec.tile.is_row();
}

BlockOperand block_tiles(const QuantizedOperand& operand, bool transpose) {
  BlockOperand block = block_factors(operand, nullptr, 0);
  const TileShape& tile = operand.spec.tile;
  const auto shift = [](std::int64_t extent) {
    return std::countr_zero(static_cast<std::uint64_t>(extent));
  };
  block.row_shift = shift(transpose ? tile.cols : tile.rows);
  block.col_shift = shift(transpose ? tile.rows : tile.cols);
  return block;
}

BlockOperand block_factors(const QuantizedOperand& operand, const float* factors,
                           std::int64_t factor_step) {
  BlockOperand block;
  block.codes = static_cast<std::uint8_t*>(operand.codes.data);
  block.stride = operand.codes.row_stride;
  block.scales = static_cast<float*>(operand.scales.data);
  block.scale_stride = operand.scales.row_stride;
  block.format = operand.spec.format;
  block.rule = operand.spec.scale;
  block.factors = factors;
  block.factor_step = factor_step;
  return block;
}

void quantize_blocks(Context& context, const TensorView& source, bool divide,
                     const BlockOperand& row, const BlockOperand& turned, std::uint32_t* amax) {
  const unsigned blocks = blocks_of(source);
  if (row.codes == nullptr && turned.codes == nullptr) {
    with_rows(
        [&](const auto& rows) {
          amax_kernel<<<blocks, kBlockThreads, 0, context.stream()>>>(rows, source.rows,
                                                                      source.cols, amax);
        },
        source);
    return check_launch("quantize: amax");
  }
  const auto run = [&]<class T, class Cast>(const Rows<T>& rows, Cast) {
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kBlockThreads, 0, context.stream()>>>(rows, source.rows, source.cols, row,
                                                             turned, amax);
    };
    if (turned.codes == nullptr) {
      launch(block_kernel<T, Cast, true, false>);
    } else if (row.codes == nullptr) {
      launch(block_kernel<T, Cast, false, true>);
    } else {
      launch(block_kernel<T, Cast, true, true>);
    }
  };
  with_cast(source, row.codes != nullptr ? row.format : turned.format, divide, run);
  check_launch("quantize: blocks");
}

void measure_columns(Context& context, const TensorView& source, std::uint32_t* amax) {
  with_rows(
      [&](const auto& rows) {
        column_amax_kernel<<<blocks_of(source), kBlockThreads, 0, context.stream()>>>(
            rows, source.rows, source.cols, amax);
      },
      source);
  check_launch("quantize: column amax");
}

void quantize_rows(Context& context, const TensorView& source, QuantizedOperand& operand) {
  const BlockOperand rows_out = block_factors(operand, nullptr, 0);
  const std::int64_t groups = (source.cols + kGroup - 1) / kGroup;
  const unsigned threads = grid_size((groups + 31) / 32, kWarps) * 32;
  const auto run = [&]<class T, class Cast>(const Rows<T>& rows, Cast) {
    row_kernel<T, Cast><<<static_cast<unsigned>(source.rows), threads, 0, context.stream()>>>(
        rows, source.cols, rows_out);
  };
  with_cast(source, operand.spec.format, operand.spec.scale.divides(), run);
  check_launch("quantize: rows");
}

}  // namespace fp8lab::cuda
