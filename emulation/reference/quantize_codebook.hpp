// Quantization into tiles with codebooks: LogFMT, and E4M3 of expanded range.
#pragma once

#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab::reference {

/// Implements ops::Quantize for formats of numerics::Encoding::tile_logarithm:
/// numerics::log_codebook of the largest and the smallest nonzero magnitude of each tile, and
/// numerics::encode_log_codebook for each element. scales(i, j) holds the scale of tile (i, j),
/// scales(i, tile_cols + j) its step. For an expansion: numerics::expanded_group and the codes of
/// numerics::expand, with the exponents after the scales and then the centers. Precondition: the
/// arguments have been checked.
void quantize_codebooks(const TensorView& source, bool transpose, const QuantizedOperand& operand);

}  // namespace fp8lab::reference
