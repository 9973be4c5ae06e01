// Quantization in one reading of the source: blocks of 128 x 128 elements stay in registers from
// the amax of their tiles to their codes, in one or in both orientations.
#pragma once

#include "emulation/backend.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/numerics/ordinary_scales.hpp"
#include "emulation/numerics/stochastic_codec.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// What numerics::nv_tile_scale makes of a tensor's encode factor S, in device memory.
struct TwoLevelFactors {
  float factor;   ///< S
  float ratio;    ///< RN(S * RN(1/Qmax))
  float inverse;  ///< RN(1/S)
};

/// One orientation of the result. Tiles lie inside the blocks: 1 x G or G x G elements of the
/// operand with G a power of two from 16 to 128; or the factors are given.
struct BlockOperand {
  std::uint8_t* codes = nullptr;  ///< nullptr: this orientation is not wanted
  std::int64_t stride = 0;
  float* scales = nullptr;
  std::int64_t scale_stride = 0;
  numerics::FormatSpec format{};
  numerics::ScaleRule rule{};
  numerics::OrdinaryScales ordinary{};     ///< of `rule`
  numerics::NearestCodec nearest{};        ///< of `format`, unless an instruction gives the codes
  numerics::StochasticCodec stochastic{};  ///< of `format`, where codes are drawn
  RandomKey key{};                         ///< of their random words
  /// A tile is 2^row_shift x 2^col_shift elements of the source.
  int row_shift = 0, col_shift = 0;
  /// Factors applied before the cast; nullptr: those of the tiles. Line i of the operand (row, or
  /// with `transpose` column of the source) takes factors[i * factor_step].
  const float* factors = nullptr;
  std::int64_t factor_step = 0;
  const TwoLevelFactors* two_level = nullptr;  ///< of two-level scales, else nullptr
};

/// True when the conversion instruction gives the codes of `spec`: E4M3 or E5M2, to nearest,
/// saturating. `validate codec` proves it equal to numerics::encode on all 2^32 inputs.
bool has_instruction(const QuantSpec& spec);
/// True when the kernels of blocks and rows find the codes of `spec`, by instruction or by
/// numerics::NearestCodec.
bool has_cast(const QuantSpec& spec);
/// True when quantize_blocks draws the codes of `spec` from a source of `cols` columns: by
/// numerics::StochasticCodec, four neighbours of a row to a block of random words.
bool has_drawn_codes(const QuantSpec& spec, std::int64_t cols);
/// True when the block kernels compute the scales of `spec` by themselves: current ones of its
/// tiles, by their amaxes, and by TwoLevelFactors where they are of two levels.
bool has_block_scales(const QuantSpec& spec);
/// The same, with codes by has_cast.
bool has_block_tiles(const QuantSpec& spec);
/// True when no scale of `spec` is known before the amax of the tensor: current ones of the whole
/// tensor, or of two levels.
bool needs_tensor_amax(const QuantSpec& spec);
/// True when one scale of the whole tensor is known beforehand.
bool has_known_scale(const QuantSpec& spec);
/// True when the codes of both are found alike: format, overflow, division or multiplication.
bool share_cast(const QuantSpec& first, const QuantSpec& second);
/// True when each row of the operand has a current scale of one level.
bool has_row_scales(const QuantSpec& spec);
/// The operand with tiles by has_block_scales, which it requires; `two_level` for such scales.
BlockOperand block_tiles(const QuantizedOperand& operand, bool transpose,
                         const TwoLevelFactors* two_level = nullptr);
/// *factors from the bits of the tensor's amax.
void find_two_level_factors(Context& context, const QuantSpec& spec,
                            const std::uint32_t* tensor_amax, TwoLevelFactors* factors);
/// The operand with given factors: factor_step 0, one for all, or 1, one for each of its rows.
BlockOperand block_factors(const QuantizedOperand& operand, const float* factors,
                           std::int64_t factor_step);

/// The operand with the factor of its known scale, which is written as well; *factor receives it.
BlockOperand block_known(Context& context, const QuantizedOperand& operand, bool transpose,
                         const TensorView& state, float* factor);

/// Writes codes (and scales of tiles) of `row`, in the orientation of the source, and of
/// `transposed`, transposed; either may be without codes, and one is where codes are drawn. `cast`
/// is the spec of either, as share_cast. With `amax` the bits of *amax are raised to those of the
/// largest magnitude of the source.
void quantize_blocks(Context& context, const TensorView& source, const QuantSpec& cast,
                     const BlockOperand& row, const BlockOperand& transposed, std::uint32_t* amax);

/// Raises the bits of *amax to those of the largest magnitude of the source.
void measure_tensor(Context& context, const TensorView& source, std::uint32_t* amax);

/// Raises rows[r] and cols[c] to the bits of the largest magnitudes of row r and column c of the
/// source, in one reading; either may be nullptr.
void measure_lines(Context& context, const TensorView& source, std::uint32_t* rows,
                   std::uint32_t* cols);

}  // namespace fp8lab::cuda
