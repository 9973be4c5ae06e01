// Block kernels of quantization: one table per instruction set, all with the same bits.
#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// Parameters that turn scaled values into codes: a numerics::FormatSpec and
/// policies as plain numbers.
struct EncodeRule {
  std::int32_t exponent_bits, mantissa_bits, bias;
  std::int32_t specials;     ///< numerics::SpecialValues
  std::int32_t encoding;     ///< numerics::Encoding
  std::int32_t rounding;     ///< numerics::Rounding
  std::int32_t overflow;     ///< numerics::Overflow
  bool divide;               ///< value / factor instead of value * factor
  std::int32_t random_bits;  ///< numerics::ElementCast::random_bits
  /// numerics::ElementCast::via, which has infinity.
  std::int32_t via_exponent_bits, via_mantissa_bits, via_bias;
};

/// Philox stream of one tensor; matters for stochastic rounding only.
struct RandomStream {
  std::uint64_t seed;
  std::uint32_t step, tensor, orientation;
};

/// Rectangle of a bf16 or f32 matrix whose corner is the corner of a tile. Tile (i, j) holds its
/// rows [i * tile_height, (i+1) * tile_height) and columns [j * tile_width, (j+1) * tile_width).
struct SourceBlock {
  const void* data;
  bool bf16;
  bool finite;                    ///< known to hold neither infinity nor NaN; unused by amax
  std::int64_t rows, row_stride;  ///< elements
  std::int64_t cols;
  std::int64_t tile_height, tile_width;
  std::int64_t tile_stride;    ///< distance from tile (i, j) to tile (i+1, j)
                               ///< in `factors` and in amaxes
  const float* factors;        ///< factors[i * tile_stride + j] of tile (i, j); unused by amax
  std::uint64_t first_index;   ///< logical index of the first element, for random bits
  std::uint64_t index_stride;  ///< distance of consecutive rows
  /// Rectangle of the same size that is read next. encode() prefetches it while it writes the codes
  /// of this one. It may end beyond the matrix.
  const void* next;
  std::int64_t next_stride;  ///< elements
};

/// One-byte codes. `streamed`: written with non-temporal stores, because the caches cannot keep the
/// codes until they are read.
struct CodeBlock {
  std::uint8_t* data;
  std::int64_t stride;  ///< bytes
  bool streamed;  ///< data and stride are multiples of 64; ignored unless codes are transposed
};

/// A rectangle of a bf16 or f32 matrix to copy into a staging buffer with its rows side by side. A
/// transpose walks down columns: the rows of a wide matrix lie in different pages, and if their
/// distance is a power of two they share few sets of a cache.
struct Prefetch {
  const void* source;
  bool bf16;
  std::int64_t rows, stride;  ///< elements
  std::int64_t cols;
  std::int64_t tile_height;
  void* copy;
  std::int64_t copy_stride;  ///< elements, at least cols and whole lines of 64 bytes
  /// magnitudes[i * copy_stride + j]: the largest magnitude of column j over the rows of tiles i,
  /// in the type of the elements.
  void* magnitudes;
};

/// numerics::OrdinaryScales as plain numbers.
struct ScalesRule {
  std::uint32_t lowest, count;
  std::uint32_t carry, offset;
  bool quotients, encode_first;
  bool divide;  ///< factors are decode scales
  float target;
};

struct QuantizeKernels {
  /// amax[i * tile_stride + j] = max(itself, FP32 bits of |x|) over the elements x of
  /// tile (i, j). The order of the bits is the order of the magnitudes, with infinity and
  /// then NaN above all numbers.
  void (*amax)(const SourceBlock* block, std::uint32_t* amax);
  /// Computes numerics::tile_scale of `count` amaxes, and the factors as EncodeRule applies them.
  /// Returns false and writes nothing if one of the amaxes is not ordinary.
  bool (*scales)(const ScalesRule* rule, const std::uint32_t* amax, std::int64_t count,
                 float* decode, float* factor);
  /// codes.data[i * codes.stride + j] = encode(x[i][j] * factor).
  void (*encode)(const EncodeRule* rule, const RandomStream* random, const SourceBlock* block,
                 const CodeBlock* codes);
  /// codes.data[j * codes.stride + i] = encode(x[i][j] * factor). Meanwhile performs all of `next`,
  /// which has elements of the same type, or no rows.
  void (*encode_transposed)(const EncodeRule* rule, const RandomStream* random,
                            const SourceBlock* block, const CodeBlock* codes, const Prefetch* next);
  void (*read)(const Prefetch* prefetch);
  /// to[j * stride + i] = from[i * cols + j] for `rows` x `cols` scales.
  void (*turn_scales)(const float* from, std::int64_t rows, std::int64_t cols, float* to,
                      std::int64_t stride, bool streamed);
};

/// Returns the table of active_target().
const QuantizeKernels& quantize_kernels();

}  // namespace fp8lab::cpu
