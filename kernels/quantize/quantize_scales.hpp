// Amaxes and scales of the tiles of any quantization, beside the kernels that find their own.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Tiles of the source, whichever way round the operand is.
struct TileGrid {
  std::int64_t height, width;  ///< of one tile
  std::int64_t high, wide;     ///< number of tiles
  FP8LAB_HD std::int64_t count() const { return high * wide; }
};

/// `tile` is that of the operand, which is transposed or not.
TileGrid tile_grid(const TensorView& source, const TileShape& tile, bool transpose);

/// The operand's scales, written with rows and columns exchanged when `transpose`.
struct Scales {
  float* data;  ///< nullptr: the operand has none
  std::int64_t stride;
  bool transpose;
  FP8LAB_HD void store(std::int64_t row, std::int64_t col, float value) const {
    if (data != nullptr) data[transpose ? col * stride + row : row * stride + col] = value;
  }
};
Scales scales_of(const QuantizedOperand& operand, bool transpose);

/// True when elements are divided by their scale, not multiplied by a factor.
inline bool divides(const QuantSpec& spec) { return spec.has_scale() && spec.scale.divides(); }

/// The running amax of a delayed state, as bits.
inline std::uint32_t* amax_of(const TensorView& state) {
  return reinterpret_cast<std::uint32_t*>(static_cast<float*>(state.data) + DelayedState::kAmax);
}

/// amax[tile] = max(amax[tile], |x|...) as bits; those of a NaN are above those of infinity.
void measure_tiles(Context& context, const TensorView& source, const TileGrid& grid,
                   std::uint32_t* amax);

/// factors[tile], what x is multiplied with or divided by, and the operand's scales, from current
/// amaxes of the tiles; two-level scales also from that of the tensor.
void find_tile_scales(Context& context, const TensorView& source, const TileGrid& grid,
                      const QuantSpec& spec, const std::uint32_t* tensor_amax,
                      const std::uint32_t* tile_amax, float* factors, const Scales& scales);

/// The same for a scale of the whole tensor that is known beforehand: static, none, or delayed,
/// then from `state`.
void find_known_scale(Context& context, const QuantSpec& spec, const TensorView& state,
                      float* factor, const Scales& scales);

}  // namespace fp8lab::cuda
