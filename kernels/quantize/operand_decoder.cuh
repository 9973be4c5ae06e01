// Values of an operand's elements on the device.
#pragma once

#include "emulation/backend.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/tile_logarithm.hpp"

namespace fp8lab::cuda {

/// Value of a stored element of an operand.
struct Decoder {
  const void* codes;
  std::int64_t row_step, k_step;
  DType dtype;
  numerics::FormatSpec format;
  bool codebooks;
  const float* scales;  ///< nullptr: none
  std::int64_t scale_stride, tile_height, tile_width, tiles_across;

  __device__ float operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * row_step + col * k_step;
    if (dtype == DType::bf16)
      return numerics::from_bf16(static_cast<const std::uint16_t*>(codes)[at]);
    if (dtype == DType::f32) return static_cast<const float*>(codes)[at];
    const std::uint32_t code = static_cast<const std::uint8_t*>(codes)[at];
    if (scales == nullptr) return numerics::decode(format, code);
    const float* row_scales = scales + row / tile_height * scale_stride;
    const std::int64_t tile = col / tile_width;
    if (codebooks) {
      return numerics::decode_log_codebook(
          format, {row_scales[tile], row_scales[tiles_across + tile]}, code);
    }
    return row_scales[tile] * numerics::decode(format, code);
  }
};

inline Decoder decoder_of(const QuantizedOperand& operand) {
  const TileShape& tile = operand.spec.tile;
  return {operand.codes.data,
          operand.row_step(),
          operand.k_step(),
          operand.codes.dtype,
          operand.spec.format,
          operand.spec.has_codebooks(),
          operand.spec.has_scale() ? static_cast<const float*>(operand.scales.data) : nullptr,
          operand.scales.row_stride,
          tile.rows == 0 ? operand.rows : tile.rows,
          tile.cols == 0 ? operand.k : tile.cols,
          operand.spec.tile_cols(operand.k)};
}

}  // namespace fp8lab::cuda
