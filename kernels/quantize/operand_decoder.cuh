// Decodes elements of an operand on the device.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "emulation/backend.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/tile_codebook.hpp"
#include "kernels/plan/limits.hpp"
#include "kernels/quantize/quantize_tiles.cuh"

namespace fp8lab::cuda {

/// Further numbers of a tile besides its scale.
enum class Codebooks : std::uint8_t { none, logarithm, expansion };

inline Codebooks codebooks_of(const QuantSpec& spec) {
  if (spec.transform.is<RangeExpansion>()) return Codebooks::expansion;
  return spec.has_codebooks() ? Codebooks::logarithm : Codebooks::none;
}

/// Returns the value of a stored element of an operand.
struct Decoder {
  const void* codes;
  std::int64_t row_step, k_step;
  DType dtype;
  numerics::FormatSpec format;
  Codebooks codebooks;
  const float* scales;  ///< nullptr: none
  std::int64_t scale_stride, tile_height, tile_width, tiles_across;

  __device__ float operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * row_step + col * k_step;
    if (dtype == DType::bf16)
      return numerics::from_bf16(static_cast<const std::uint16_t*>(codes)[at]);
    if (dtype == DType::f32) return static_cast<const float*>(codes)[at];
    const std::uint32_t code = static_cast<const std::uint8_t*>(codes)[at];
    if (scales == nullptr) return numerics::decode(format, code);
    const float* scale = scale_of(row, col);
    switch (codebooks) {
      case Codebooks::none: break;
      case Codebooks::logarithm:
        return numerics::LogarithmTile::read(scale, tiles_across).decode(format, code);
      case Codebooks::expansion:
        return numerics::ExpandedTile::read(scale, tiles_across).decode(format, code);
    }
    return *scale * numerics::decode(format, code);
  }

  /// Computes the values of kGroup columns from `col`, a multiple of kGroup. Precondition:
  /// has_code_groups(), and the format is e4m3 where kE4M3 is true.
  template <bool kE4M3>
  __device__ void decode_group(std::int64_t row, std::int64_t col, float (&values)[kGroup]) const {
    const auto* from = static_cast<const std::uint8_t*>(codes) + row * row_step + col;
    const uint2 word = *reinterpret_cast<const uint2*>(from);
    const float scale = scales == nullptr ? 1.0f : *scale_of(row, col);  // times 1 is exact
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) {
      const std::uint32_t pair = (i < 4 ? word.x : word.y) >> 8 * (i % 4);
      if constexpr (kE4M3) {
        const auto both = static_cast<__nv_fp8x2_storage_t>(pair);
        const float2 decoded = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(both, __NV_E4M3)));
        values[i] = scale * decoded.x;
        values[i + 1] = scale * decoded.y;
      } else {
        values[i] = scale * numerics::decode(format, pair & 0xFFu);
        values[i + 1] = scale * numerics::decode(format, pair >> 8 & 0xFFu);
      }
    }
  }

  /// Returns the scale of an element's tile. Precondition: the operand has scales.
  __device__ const float* scale_of(std::int64_t row, std::int64_t col) const {
    return scales + quotient(row, tile_height) * scale_stride + quotient(col, tile_width);
  }
};

/// Returns true if k is a multiple of kGroup, and kGroup codes from such a multiple are one aligned
/// word with one scale.
inline bool has_code_groups(const QuantizedOperand& operand) {
  const std::int64_t width = operand.spec.tile.cols == 0 ? operand.k : operand.spec.tile.cols;
  const auto address = reinterpret_cast<std::uintptr_t>(operand.codes.data);
  return operand.codes.dtype == DType::u8 && operand.k_step() == 1 && operand.k % kGroup == 0 &&
         codebooks_of(operand.spec) == Codebooks::none && address % kGroup == 0 &&
         (operand.rows == 1 || operand.row_step() % kGroup == 0) &&
         (!operand.spec.has_scale() || width >= operand.k || width % kGroup == 0);
}

inline Decoder decoder_of(const QuantizedOperand& operand) {
  const TileShape& tile = operand.spec.tile;
  return {operand.codes.data,
          operand.row_step(),
          operand.k_step(),
          operand.codes.dtype,
          operand.spec.format,
          codebooks_of(operand.spec),
          operand.spec.has_scale() ? static_cast<const float*>(operand.scales.data) : nullptr,
          operand.scales.row_stride,
          tile.rows == 0 ? operand.rows : tile.rows,
          tile.cols == 0 ? operand.k : tile.cols,
          operand.spec.tile_cols(operand.k)};
}

}  // namespace fp8lab::cuda
