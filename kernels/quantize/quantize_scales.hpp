// Amaxes and scales for any tiles, for the kernels that do not compute their own.
#pragma once

#include "emulation/backend.hpp"
#include "kernels/plan/tile_grid.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Writes the operand's scales, with rows and columns exchanged if `transpose`.
struct Scales {
  float* data;  ///< nullptr: the operand has none
  std::int64_t stride;
  bool transpose;
  FP8LAB_HD void store(std::int64_t row, std::int64_t col, float value) const {
    if (data != nullptr) data[transpose ? col * stride + row : row * stride + col] = value;
  }
};
Scales scales_of(const QuantizedOperand& operand, bool transpose);

/// The running amax of a delayed state, as bits.
inline std::uint32_t* amax_of(const TensorView& state) {
  return reinterpret_cast<std::uint32_t*>(static_cast<float*>(state.data) + DelayedState::kAmax);
}

/// amax[tile] = max(amax[tile], |x|...) as bits; the bits of a NaN are above those of infinity.
void measure_tiles(Context& context, const TensorView& source, const TileGrid& grid,
                   std::uint32_t* amax);

/// Computes factors[tile], the multiplier or divisor of x, and the operand's scales from the
/// current amaxes of the tiles; two-level scales also use outer_amax, of the tensor or with
/// OuterScale::row of each row of the operand.
void find_tile_scales(Context& context, const TensorView& source, const TileGrid& grid,
                      const QuantSpec& spec, const std::uint32_t* outer_amax,
                      const std::uint32_t* tile_amax, float* factors, const Scales& scales);

/// Computes factor and scale of a tensor whose single scale is known beforehand: static, none, or
/// delayed, which reads `state`.
void find_known_scale(Context& context, const QuantSpec& spec, const TensorView& state,
                      float* factor, const Scales& scales);

}  // namespace fp8lab::cuda
