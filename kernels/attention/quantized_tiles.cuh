// Shared parts of the kernels of attention on quantized operands
// (emulation/ops/attention/quantized_attention.hpp): operands, their tiles, casts of P and dS, and
// chains.
//
// Tiles, warps and fragments are those of attention.cuh. Tiles hold values of type T: codes are
// decoded, which is exact, when a tile is loaded. For each operand with codes a table in shared
// memory holds the value of each of the 256 codes.
//
//   operands of a product        chain of a warp
//   e4m3fn or e5m2, both         fp8_group: groups of 32 in scalar arithmetic, by the values
//   others, bf16                 multiply_group: groups of 16 on the tensor core
//   others, f32                  fma in ascending order
//
// A chain takes the summed indices [first, last) of a step, in the range that the CPU sums. Scales
// are constant over a tile of tokens. So registers hold a partial sum over the tile's steps, each
// of kTileRows tokens, and at the tile's end it is promoted.
#pragma once

#include <algorithm>
#include <limits>

#include "emulation/numerics/mma.hpp"
#include "emulation/ops/attention/quantized_attention.hpp"
#include "kernels/attention/attention.cuh"
#include "kernels/quantize/quantize_tiles.cuh"

namespace fp8lab::cuda {

inline constexpr int kQuantizedWidth = 64;  ///< columns of an operand tile and of a block's result
inline constexpr int kResultBlocks = kQuantizedWidth / 8;  ///< n8 blocks of a row of results
inline constexpr int kCodeValues = 256;                    ///< values of the codes of an operand
inline constexpr int kFp8Group = static_cast<int>(kFp8AttentionGroup);

using Sums = float[kResultBlocks][4];

// --- operands -----------------------------------------------------------------------------------

/// The scales of the rows and heads of an operand; 1 without scales (attention_scale).
struct HeadScales {
  const float* data;  ///< nullptr: none
  std::int64_t stride;
  unsigned rows, heads;  ///< of a tile

  __device__ float operator()(std::int64_t row, int head) const {
    if (data == nullptr) return 1.0f;
    return data[static_cast<unsigned>(row) / rows * stride + static_cast<unsigned>(head) / heads];
  }
};

/// q, k, v or dout: rows (T, heads * D) of codes with scales, or of values of type T.
template <class T>
struct QuantizedRows {
  const void* data;
  std::int64_t stride;
  bool has_codes;
  numerics::FormatSpec format;
  HeadScales scales;

  /// Returns the value of an element, without its scale.
  __device__ float value(std::int64_t row, int column) const {
    const std::int64_t at = row * stride + column;
    if (!has_codes) return from_operand(static_cast<const T*>(data)[at]);
    return numerics::decode(format, static_cast<const std::uint8_t*>(data)[at]);
  }
};

template <class T>
QuantizedRows<T> quantized_rows(const QuantizedOperand& operand, std::int64_t head_dim) {
  static constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  const TileShape& tile = operand.spec.tile;
  const auto extent = [](std::int64_t count) {
    return static_cast<unsigned>(count == 0 ? kAll : std::clamp<std::int64_t>(count, 1, kAll));
  };
  const bool has_scale = operand.spec.has_scale();
  return {operand.codes.data,
          operand.codes.row_stride,
          operand.spec.is_quantized(),
          operand.spec.format,
          {has_scale ? static_cast<const float*>(operand.scales.data) : nullptr,
           operand.scales.row_stride, extent(tile.rows),
           tile.cols == 0 ? extent(0) : extent(tile.cols / head_dim)}};
}

/// Writes the values of all codes of `format` to shared memory. Precondition: the whole block calls
/// it, with a barrier before the values are read.
template <class T>
__device__ void decode_values(const numerics::FormatSpec& format, T* values) {
  const std::uint32_t count = 1u << format.bits();
  for (unsigned code = threadIdx.x; code < kCodeValues; code += kAttentionThreads) {
    to_operand(numerics::decode(format, code % count), values + code);
  }
}

/// Tokens [token, token + count) of one head, whose columns start at `column`.
template <class T>
struct QuantizedHead {
  const QuantizedRows<T>& rows;
  std::int64_t token;
  int count;
  int column;
};

/// A tile of operands in shared memory, decoded.
template <class T>
class QuantizedTile {
 public:
  using Values = Tile<T, kQuantizedWidth>;
  static constexpr int kStride = Values::kStride;
  static constexpr int kElements = Values::kElements + kCodeValues;

  __device__ explicit QuantizedTile(T* memory)
      : tile_(memory), values_(memory + Values::kElements) {}

  __device__ T* row(int r) const { return tile_.row(r); }
  __device__ T* end() const { return values_ + kCodeValues; }
  /// Prepares to decode `rows`. Precondition: the whole block calls it, before a barrier.
  __device__ void prepare(const QuantizedRows<T>& rows) const {
    if (rows.has_codes) decode_values(rows.format, values_);
  }
  /// As Tile::load.
  __device__ void load(const QuantizedHead<T>& source, int first, int head_dim) {
    const QuantizedRows<T>& rows = source.rows;
    if (!rows.has_codes) {
      const OperandRows<T> values{static_cast<const T*>(rows.data), rows.stride};
      return tile_.load({values, source.token, source.count, source.column}, first, head_dim);
    }
    const auto* corner = static_cast<const std::uint8_t*>(rows.data) + source.token * rows.stride +
                         source.column + first;
    if (corner == held_) return;
    held_ = corner;
    constexpr int kWord = 4;
    const bool aligned =
        ((reinterpret_cast<std::uintptr_t>(corner) | static_cast<std::uintptr_t>(rows.stride)) %
         kWord) == 0;
    constexpr int kWords = kQuantizedWidth / kWord;
    for (int slot = static_cast<int>(threadIdx.x); slot < kTileRows * kWords;
         slot += kAttentionThreads) {
      const int r = slot / kWords, c = slot % kWords * kWord;
      const int count = r < source.count ? head_dim - first - c : 0;
      const std::uint8_t* from = corner + r * rows.stride + c;
      std::uint8_t codes[kWord] = {};
      if (aligned && count >= kWord) {
        const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(from);
        std::memcpy(codes, &word, sizeof word);
      } else {
#pragma unroll
        for (int e = 0; e < kWord; ++e) codes[e] = e < count ? from[e] : std::uint8_t{0};
      }
#pragma unroll
      for (int e = 0; e < kWord; ++e) row(r)[c + e] = e < count ? values_[codes[e]] : T{};
    }
  }

 private:
  Values tile_;
  T* values_;
  const std::uint8_t* held_ = nullptr;
};

// --- P and dS -----------------------------------------------------------------------------------

/// The scale of a tile of P or dS as its cast applies it.
struct InnerScale {
  float decode = 1.0f;
  float factor = 1.0f;  ///< multiplies, or divides if the rule divides
};

/// Casts P or dS inside attention.
struct InnerCast {
  bool has_codes;
  Cast cast;

  const numerics::FormatSpec& format() const { return cast.element.format; }
  /// Stores x as an operand; `values` are those of the codes.
  template <class T>
  __device__ __noinline__ void store(float x, const InnerScale& scale, const T* values,
                                     T* operand) const {
    if (has_codes) {
      *operand = values[cast.code(cast.scaled(x, scale.factor), 0)];
    } else {
      to_operand(x, operand);
    }
  }
};

inline InnerCast inner_cast(const QuantSpec& spec) {
  return {spec.is_quantized(), cast_of(spec, RandomKey{})};
}

/// The scale that a static spec always has; 1 without a scale.
inline InnerScale fixed_scale(const QuantSpec& spec) {
  if (spec.scale_source != ScaleSource::static_scale) return {};
  const float scale = spec.static_scale;
  return {scale, spec.scale.divides() ? scale : numerics::bounded_quotient(1.0f, scale)};
}

// --- chains -------------------------------------------------------------------------------------

/// How two operands are multiplied.
struct Product {
  bool is_fp8;
  bool is_promoted;
  std::uint32_t least_a, least_b;  ///< of FP8: 2^(smallest exponent), as FP32 bits
};

inline Product product_of(const QuantSpec& a, const QuantSpec& b) {
  const auto least = [](const QuantSpec& spec) {
    return static_cast<std::uint32_t>(127 + spec.format.min_exponent()) << 23;
  };
  if (!is_fp8_operand(a) || !is_fp8_operand(b)) {
    return {false, a.is_quantized() || b.is_quantized(), 0, 0};
  }
  return {true, true, least(a), least(b)};
}

/// Returns 2^e for the exponent e at which the multiplier counts a value, not normalised: at least
/// that of `least`. 0 for 0, infinity for an infinity and NaN.
__device__ inline float counted_power(float value, std::uint32_t least) {
  const std::uint32_t power = numerics::float_bits(value) & 0x7F800000u;
  return value == 0.0f ? 0.0f : numerics::bits_float(power > least ? power : least);
}

__device__ inline bool is_special(float value) {
  return (numerics::float_bits(value) & 0x7F800000u) == 0x7F800000u;
}

/// Returns the scale of a group's grid, 2^13 / largest; 0 for a group of zeros.
__device__ inline float grid_scale(float largest) {
  constexpr std::uint32_t kFraction = numerics::kSm90WgmmaFp8F32.fraction_bits;
  return largest == 0.0f
             ? 0.0f
             : numerics::bits_float(((254u + kFraction) << 23) - numerics::float_bits(largest));
}

/// Returns the result of a group from its sum in units of the grid: exact, then truncated.
__device__ inline float on_grid(int sum, float largest) {
  constexpr numerics::GroupModel kModel = numerics::kSm90WgmmaFp8F32;
  constexpr std::uint32_t kMask = ~0u << (23 - kModel.output_mantissa_bits);
  constexpr float kUnit = 1.0f / (1 << kModel.fraction_bits);
  const float value = static_cast<float>(sum) * (largest * kUnit);
  return numerics::bits_float(numerics::float_bits(value) & kMask);
}

/// A line of operands in shared memory: element k is at data[k * step].
template <class T>
struct Line {
  const T* data;
  int step;

  __device__ float operator[](int k) const { return from_operand(data[k * step]); }
};

/// Returns one group of sm90_wgmma_fp8 of the accumulator c and `count` <= 32 products a[k] b[k] of
/// values of FP8 codes. c is +0 or a result of this chain, so that no power of two leaves the
/// normal range. A product of FP8 values is exact in FP32, as is its multiple on the group's grid.
template <class T>
__device__ __noinline__ float fp8_element(const Product& product, int count, float c, Line<T> a,
                                          Line<T> b) {
  float largest = counted_power(c, 0);
  float sum_of_products = c;
  for (int k = 0; k < count; ++k) {
    const float x = a[k], y = b[k];
    const float power = counted_power(x, product.least_a) * counted_power(y, product.least_b);
    largest = power > largest ? power : largest;
    sum_of_products += x * y;
  }
  if (is_special(sum_of_products)) return numerics::canonical_nan(sum_of_products);
  const float scale = grid_scale(largest);
  int sum = static_cast<int>(c * scale);
  for (int k = 0; k < count; ++k) sum += static_cast<int>(a[k] * b[k] * scale);
  return on_grid(sum, largest);
}

/// Four accumulators of two rows by two columns, as in a fragment.
struct Fragment {
  float sum[4];
};

/// The same for two rows by two columns: rows[i / 2] and columns[i % 2] for accumulator i. A row is
/// `row_distance` elements behind the other, and a column `column_distance`.
template <class T>
__device__ __noinline__ Fragment fp8_fragment(const Product& product, int count, Fragment acc,
                                              Line<T> row, int row_distance, Line<T> column,
                                              int column_distance) {
  const Line<T> rows[2] = {row, {row.data + row_distance, row.step}};
  const Line<T> columns[2] = {column, {column.data + column_distance, column.step}};
  float largest[4], top = 0.0f;  // powers of the products, and of all operands
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = counted_power(acc.sum[i], 0);
    top = largest[i] > top ? largest[i] : top;
  }
  for (int k = 0; k < count; ++k) {
    float x[2], y[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = counted_power(rows[e][k], product.least_a);
      y[e] = counted_power(columns[e][k], product.least_b);
      top = x[e] > top ? x[e] : top;
      top = y[e] > top ? y[e] : top;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float power = x[i / 2] * y[i % 2];
      largest[i] = power > largest[i] ? power : largest[i];
    }
  }
  if (is_special(top)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      acc.sum[i] = fp8_element(product, count, acc.sum[i], rows[i / 2], columns[i % 2]);
    }
    return acc;
  }
  float scale[4];
  int sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scale[i] = grid_scale(largest[i]);
    sum[i] = static_cast<int>(acc.sum[i] * scale[i]);
  }
  for (int k = 0; k < count; ++k) {
    const float x[2] = {rows[0][k], rows[1][k]}, y[2] = {columns[0][k], columns[1][k]};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += static_cast<int>(x[i / 2] * y[i % 2] * scale[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) acc.sum[i] = on_grid(sum[i], largest[i]);
  return acc;
}

/// Distances of the rows and columns of an operand in its tile.
template <Stored kStored>
struct Steps {
  int row, column;
  __device__ explicit Steps(int stride)
      : row(kStored == Stored::as_is ? stride : 1), column(kStored == Stored::as_is ? 1 : stride) {}
};

/// Adds one group of FP8 products to the fragments of the column pairs whose bit is set.
template <Stored kLeft, Stored kRight, class T, int kBlocks>
__device__ void fp8_group(const Product& product, const T* a, int a_stride, const T* b,
                          int b_stride, int count, unsigned pairs, float (&acc)[kBlocks][4]) {
  const Steps<kLeft> left(a_stride);
  const Steps<kRight> right(b_stride);
  const Line<T> row{a + fragment_row() * left.row, left.column};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    if ((pairs >> n / 2 & 1u) == 0) continue;
    const Line<T> column{b + (8 * n + fragment_column()) * right.column, right.row};
    const Fragment sums = fp8_fragment(product, count, {acc[n][0], acc[n][1], acc[n][2], acc[n][3]},
                                       row, 8 * left.row, column, right.column);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] = sums.sum[i];
  }
}

/// Zeros the products from `count` on of a pair of bf16 operands for k = index and index + 1.
__device__ inline std::uint32_t first_products(std::uint32_t pair, int index, int count) {
  if (index + 1 < count) return pair;
  return index < count ? pair & 0xFFFFu : 0u;
}

/// Adds one group of `count` <= 16 products of bf16 values.
template <Stored kLeft, Stored kRight, int kBlocks>
__device__ void value_group(const std::uint16_t* a, int a_stride, const std::uint16_t* b,
                            int b_stride, int count, unsigned pairs, float (&acc)[kBlocks][4]) {
  std::uint32_t left[4];
  load_left<kLeft>(a, a_stride, left);
  const int k = fragment_column();
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = first_products(left[i], k + i / 2 * 8, count);
#pragma unroll
  for (int pair = 0; pair < kBlocks / 2; ++pair) {
    if ((pairs >> pair & 1u) == 0) continue;
    std::uint32_t right[4];
    load_right<kRight>(b + pair * 16 * (kRight == Stored::as_is ? 1 : b_stride), b_stride, right);
#pragma unroll
    for (int i = 0; i < 4; ++i) right[i] = first_products(right[i], k + i % 2 * 8, count);
    multiply_group(left, right[0], right[1], acc[2 * pair]);
    multiply_group(left, right[2], right[3], acc[2 * pair + 1]);
  }
}

/// The same of f32 values.
template <Stored kLeft, Stored kRight, int kBlocks>
__device__ void value_group(const float* a, int a_stride, const float* b, int b_stride, int count,
                            unsigned pairs, float (&acc)[kBlocks][4]) {
  const Steps<kLeft> left(a_stride);
  const Steps<kRight> right(b_stride);
  const float* rows = a + fragment_row() * left.row;
  const float* columns = b + fragment_column() * right.column;
  for (int k = 0; k < count; ++k) {
    const float upper = rows[k * left.column], lower = rows[8 * left.row + k * left.column];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if ((pairs >> n / 2 & 1u) == 0) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float y = columns[(8 * n + e) * right.column + k * right.row];
        acc[n][e] = __fmaf_rn(upper, y, acc[n][e]);
        acc[n][2 + e] = __fmaf_rn(lower, y, acc[n][2 + e]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    if ((pairs >> n / 2 & 1u) == 0) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] = __fadd_rn(acc[n][i], 0.0f);
  }
}

/// Computes acc = chain(acc; a, b) over the summed indices [first, last), ascending, for the groups
/// of 16 columns in `pairs`. `a` and `b` are as in chain(). Preconditions: all lanes of the warp
/// call it with the same range and pairs; `first` is a multiple of 32.
template <Stored kLeft, Stored kRight, class T, int kBlocks>
__device__ void multiply(const Product& product, const T* a, int a_stride, const T* b, int b_stride,
                         int first, int last, unsigned pairs, float (&acc)[kBlocks][4]) {
  const int a_step = kLeft == Stored::as_is ? 1 : a_stride;
  const int b_step = kRight == Stored::as_is ? b_stride : 1;
  if (product.is_fp8) {
    for (int k = first; k < last; k += kFp8Group) {
      fp8_group<kLeft, kRight>(product, a + k * a_step, a_stride, b + k * b_step, b_stride,
                               min(kFp8Group, last - k), pairs, acc);
    }
    return;
  }
  for (int k = first; k < last; k += kChainGroup) {
    value_group<kLeft, kRight>(a + k * a_step, a_stride, b + k * b_step, b_stride,
                               min(kChainGroup, last - k), pairs, acc);
  }
}

/// Computes acc (16 rows of the warp, kTileRows) = chain(acc; a, b^T) over the head dimension, for
/// the groups of 16 rows of b in `pairs`. Fills the tiles as needed, and calls `load` between the
/// same barriers. Precondition: the whole block calls it.
template <class T, class Load>
__device__ void add_scores(const Product& product, const QuantizedHead<T>& a,
                           const QuantizedHead<T>& b, int head_dim, unsigned pairs,
                           QuantizedTile<T>& a_tile, QuantizedTile<T>& b_tile, const Load& load,
                           float (&acc)[kScoreBlocks][4]) {
  for (int first = 0; first < head_dim; first += kQuantizedWidth) {
    __syncthreads();
    a_tile.load(a, first, head_dim);
    b_tile.load(b, first, head_dim);
    load();
    __syncthreads();
    if (pairs == 0) continue;
    multiply<Stored::as_is, Stored::transposed>(
        product, a_tile.row(warp_id() * kChainGroup), QuantizedTile<T>::kStride, b_tile.row(0),
        QuantizedTile<T>::kStride, 0, min(kQuantizedWidth, head_dim - first), pairs, acc);
  }
}

/// A sum over one tile of tokens: add(sum; a, b; s). `begin` starts the partial sum in `part`, and
/// `end` adds it.
template <int kBlocks>
__device__ void begin_sum(bool promoted, const float (&sum)[kBlocks][4],
                          float (&part)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) part[n][i] = promoted ? 0.0f : sum[n][i];
  }
}
template <int kBlocks>
__device__ void end_sum(bool promoted, const float (&part)[kBlocks][4], float scale,
                        float (&sum)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[n][i] =
          promoted ? numerics::fused_multiply_add(part[n][i], scale, sum[n][i]) : part[n][i];
    }
  }
}

/// A range of tokens of a step; empty if first >= last.
struct StepRange {
  int first, last;
};

/// Returns the summed indices of the step of kTileRows tokens from `step` on, of the tile from
/// `tile` on of which [first, last) take part: whole groups of 32 from the first one on. All are
/// positions; the result counts from `step`. Precondition: step - tile is a multiple of 32.
__device__ inline StepRange summed_range(int tile, int first, int last, int step) {
  const int begin = tile + (first - tile) / kFp8Group * kFp8Group;
  return {max(begin - step, 0), min(last - step, kTileRows)};
}

}  // namespace fp8lab::cuda
