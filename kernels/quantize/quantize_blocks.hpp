// Quantization in one pass over the source: blocks of 128 x 128 elements stay in registers from the
// amax of their tiles to their codes, in one or in both orientations.
#pragma once

#include "emulation/backend.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/numerics/ordinary_scales.hpp"
#include "emulation/numerics/stochastic_codec.hpp"
#include "kernels/plan/quantize_plan.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// The numbers that numerics::nv_tile_scale derives from a tensor's encode
/// factor S, in device memory.
struct TwoLevelFactors {
  float factor;   ///< S
  float ratio;    ///< RN(S * RN(1/Qmax))
  float inverse;  ///< RN(1/S)
};

/// One orientation of the result. Tiles lie inside the blocks: they have 1 x G or G x G
/// elements of the operand, with G a power of two from 16 to 128. Alternatively the
/// caller provides the factors.
struct BlockOperand {
  std::uint8_t* codes = nullptr;  ///< nullptr: this orientation is not computed
  std::int64_t stride = 0;
  float* scales = nullptr;
  std::int64_t scale_stride = 0;
  numerics::FormatSpec format{};
  numerics::ScaleRule rule{};
  numerics::OrdinaryScales ordinary{};  ///< for `rule`
  numerics::NearestCodec nearest{};  ///< for `format`, unless the conversion instruction encodes it
  numerics::StochasticCodec stochastic{};  ///< for `format` with stochastic rounding
  RandomKey key{};                         ///< of the random words
  /// A tile is 2^row_shift x 2^col_shift elements of the source.
  int row_shift = 0, col_shift = 0;
  /// Factors applied before the cast; nullptr: the kernel computes them for each tile. Line i of
  /// the operand (a row of the source, or with `transpose` a column) uses factors[i * factor_step].
  const float* factors = nullptr;
  std::int64_t factor_step = 0;
  const TwoLevelFactors* two_level = nullptr;  ///< for two-level scales, else nullptr
};

/// Returns the operand with its tiles; two-level scales need `two_level`.
/// Precondition: the tiles lie in blocks (plan_tiles of kernels/plan/quantize_plan.cpp).
BlockOperand block_tiles(const QuantizedOperand& operand, bool transpose,
                         const TwoLevelFactors* two_level = nullptr);
/// Computes *factors from the bits of the tensor's amax.
void find_two_level_factors(Context& context, const QuantSpec& spec,
                            const std::uint32_t* tensor_amax, TwoLevelFactors* factors);
/// Returns the operand with given factors: one factor for all if factor_step is 0, one for
/// each of its rows if it is 1.
BlockOperand block_factors(const QuantizedOperand& operand, const float* factors,
                           std::int64_t factor_step);

/// Returns the operand with the factor of its known scale. Writes the factor to *factor and
/// the scale to the operand.
BlockOperand block_known(Context& context, const QuantizedOperand& operand, bool transpose,
                         const TensorView& state, float* factor);

/// Writes codes (and scales of tiles) of `row`, in the orientation of the source, and of
/// `transposed`. Either may be without codes; with stochastic rounding exactly one has codes.
/// `cast` is the spec of either, whose encoder both share. If `amax` is set, raises the bits of
/// *amax to those of the largest magnitude of the source.
void quantize_blocks(Context& context, const TensorView& source, const QuantSpec& cast,
                     const BlockOperand& row, const BlockOperand& transposed, std::uint32_t* amax);

/// Raises the bits of *amax to those of the largest magnitude of the source.
void measure_tensor(Context& context, const TensorView& source, std::uint32_t* amax);

/// Raises rows[r] and cols[c] to the bits of the largest magnitudes of row r and column c of the
/// source, in one pass; either may be nullptr.
void measure_lines(Context& context, const TensorView& source, std::uint32_t* rows,
                   std::uint32_t* cols);

}  // namespace fp8lab::cuda
