// Block kernels of quantization, one table per instruction set, same bits.
#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// How scaled values become codes: a numerics::FormatSpec and policies as plain numbers.
struct EncodeRule {
  std::int32_t exponent_bits, mantissa_bits, bias;
  std::int32_t specials;  ///< numerics::SpecialValues
  std::int32_t encoding;  ///< numerics::Encoding
  std::int32_t rounding;  ///< numerics::Rounding
  std::int32_t overflow;  ///< numerics::Overflow
  bool divide;            ///< value / factor instead of value * factor
};

/// Philox stream of one tensor; matters for stochastic rounding only.
struct RandomStream {
  std::uint64_t seed;
  std::uint32_t step, tensor, orientation;
};

/// Rectangle of a bf16 or f32 matrix whose rows all lie in the same tiles. The first column begins
/// a tile of `tile_width` columns; factors[j] belongs to columns [j * tile_width, (j+1) *
/// tile_width).
struct SourceBlock {
  const void* data;
  bool bf16;
  bool finite;                    ///< known to hold neither infinity nor NaN; unused by amax
  std::int64_t rows, row_stride;  ///< elements
  std::int64_t cols;
  std::int64_t tile_width;
  const float* factors;        ///< unused by amax
  std::uint64_t first_index;   ///< logical index of the first element, for random bits
  std::uint64_t index_stride;  ///< of consecutive rows
  std::int64_t prefetch;       ///< bytes from an element being encoded to one needed soon
};

struct QuantizeKernels {
  /// amax[j] = max(amax[j], FP32 bits of |x|) over the elements x of tile j. The order of the bits
  /// is the order of the magnitudes, with infinity and then NaN above all numbers.
  void (*amax)(const SourceBlock* block, std::uint32_t* amax);
  /// codes[i * code_stride + j] = encode(x[i][j] * factor), one byte each.
  void (*encode)(const EncodeRule* rule, const RandomStream* random, const SourceBlock* block,
                 std::uint8_t* codes, std::int64_t code_stride);
  /// destination (cols, rows) = transpose of source (rows, cols); strides in bytes.
  void (*transpose_bytes)(const std::uint8_t* source, std::int64_t source_stride, std::int64_t rows,
                          std::int64_t cols, std::uint8_t* destination,
                          std::int64_t destination_stride);
};

/// The table of active_target().
const QuantizeKernels& quantize_kernels();

}  // namespace fp8lab::cpu
